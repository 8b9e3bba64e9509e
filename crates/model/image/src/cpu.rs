//! What a processor can do, as far as a running program may have noticed.
//!
//! A C library picks its `memcpy` once, at start; a restored process goes on using it. So the target must offer all
//! that the source offered. Bits are ours, in the order of [`NAMES`]; new ones are only ever appended.

use core::arch::x86_64::__cpuid_count;

/// Where a feature's bit is found: leaf, subleaf, register (0 eax … 3 edx), bit.
type CpuidBit = (u32, u32, usize, u32);

/// Features by name, as `/proc/cpuinfo` spells them.
pub const NAMES: &[(&str, CpuidBit)] = &[
    ("sse3", (1, 0, 2, 0)),
    ("pclmulqdq", (1, 0, 2, 1)),
    ("ssse3", (1, 0, 2, 9)),
    ("fma", (1, 0, 2, 12)),
    ("cx16", (1, 0, 2, 13)),
    ("sse4_1", (1, 0, 2, 19)),
    ("sse4_2", (1, 0, 2, 20)),
    ("movbe", (1, 0, 2, 22)),
    ("popcnt", (1, 0, 2, 23)),
    ("aes", (1, 0, 2, 25)),
    ("xsave", (1, 0, 2, 26)),
    ("avx", (1, 0, 2, 28)),
    ("f16c", (1, 0, 2, 29)),
    ("rdrand", (1, 0, 2, 30)),
    ("fsgsbase", (7, 0, 1, 0)),
    ("bmi1", (7, 0, 1, 3)),
    ("avx2", (7, 0, 1, 5)),
    ("bmi2", (7, 0, 1, 8)),
    ("erms", (7, 0, 1, 9)),
    ("rtm", (7, 0, 1, 11)),
    ("avx512f", (7, 0, 1, 16)),
    ("avx512dq", (7, 0, 1, 17)),
    ("rdseed", (7, 0, 1, 18)),
    ("adx", (7, 0, 1, 19)),
    ("avx512ifma", (7, 0, 1, 21)),
    ("clflushopt", (7, 0, 1, 23)),
    ("clwb", (7, 0, 1, 24)),
    ("avx512cd", (7, 0, 1, 28)),
    ("sha_ni", (7, 0, 1, 29)),
    ("avx512bw", (7, 0, 1, 30)),
    ("avx512vl", (7, 0, 1, 31)),
    ("avx512vbmi", (7, 0, 2, 1)),
    ("avx512_vbmi2", (7, 0, 2, 6)),
    ("gfni", (7, 0, 2, 8)),
    ("vaes", (7, 0, 2, 9)),
    ("vpclmulqdq", (7, 0, 2, 10)),
    ("avx512_vnni", (7, 0, 2, 11)),
    ("avx512_bitalg", (7, 0, 2, 12)),
    ("avx512_vpopcntdq", (7, 0, 2, 14)),
    ("rdpid", (7, 0, 2, 22)),
    ("movdiri", (7, 0, 2, 27)),
    ("movdir64b", (7, 0, 2, 28)),
    ("fsrm", (7, 0, 3, 4)),
    ("serialize", (7, 0, 3, 14)),
    ("amx_bf16", (7, 0, 3, 22)),
    ("avx512_fp16", (7, 0, 3, 23)),
    ("amx_tile", (7, 0, 3, 24)),
    ("amx_int8", (7, 0, 3, 25)),
    ("avx_vnni", (7, 1, 0, 4)),
    ("avx512_bf16", (7, 1, 0, 5)),
    ("lzcnt", (0x8000_0001, 0, 2, 5)),
    ("sse4a", (0x8000_0001, 0, 2, 6)),
    ("prefetchw", (0x8000_0001, 0, 2, 8)),
    ("xop", (0x8000_0001, 0, 2, 11)),
    ("fma4", (0x8000_0001, 0, 2, 16)),
    ("tbm", (0x8000_0001, 0, 2, 21)),
    ("rdtscp", (0x8000_0001, 0, 3, 27)),
];

/// State components whose place in the xsave area is recorded: 2 (AVX) to 19 (APX); 17 and 18 are AMX.
const STATE_COMPONENTS: core::ops::Range<u32> = 2..20;

/// A processor's abilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Bit i: `NAMES[i]` is there.
    pub features: u64,
    /// State components the processor knows (CPUID 0xD.0, edx:eax).
    pub xsave_mask: u64,
    /// Bytes of the xsave area for the components the kernel enabled (CPUID 0xD.0, ebx).
    pub xsave_size: u64,
    /// xxh3 of size and offset of each component: vendors lay the area out differently.
    pub xsave_layout: u64,
}

/// Why a program of one processor cannot go on on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuMismatch {
    /// A feature by name.
    #[error("this machine's processor lacks {0}, which the saved program may be using")]
    Feature(&'static str),
    /// The xsave area is smaller or laid out differently.
    #[error("this machine's processor keeps its extended registers in another layout ({here} bytes, saved {saved})")]
    Registers {
        /// Bytes here.
        here: u64,
        /// Bytes when saved.
        saved: u64,
    },
}

impl Cpu {
    /// The processor this runs on.
    #[must_use]
    pub fn detect() -> Self {
        let mut features = 0;
        for (bit, (_, (leaf, subleaf, register, position))) in NAMES.iter().enumerate() {
            if leaf_exists(*leaf) && registers(*leaf, *subleaf)[*register] & (1 << position) != 0 {
                features |= 1 << bit;
            }
        }
        let (mut xsave_mask, mut xsave_size, mut xsave_layout) = (0, 0, 0);
        if leaf_exists(0xd) {
            let [eax, ebx, _, edx] = registers(0xd, 0);
            xsave_mask = u64::from(eax) | u64::from(edx) << 32;
            xsave_size = u64::from(ebx);
            let mut layout = [0u8; 8 * 18];
            for (component, slot) in STATE_COMPONENTS.zip(layout.chunks_exact_mut(8)) {
                if xsave_mask & (1 << component) != 0 {
                    let [size, offset, ..] = registers(0xd, component);
                    slot[..4].copy_from_slice(&size.to_le_bytes());
                    slot[4..].copy_from_slice(&offset.to_le_bytes());
                }
            }
            xsave_layout = xxhash_rust::xxh3::xxh3_64(&layout);
        }
        Self { features, xsave_mask, xsave_size, xsave_layout }
    }

    /// Whether a program saved on `self` can go on on `here`.
    ///
    /// # Errors
    /// The first thing that `here` lacks.
    pub fn runs_on(&self, here: &Cpu) -> Result<(), CpuMismatch> {
        let missing = self.features & !here.features;
        if missing != 0 {
            let name = NAMES.get(missing.trailing_zeros() as usize).map_or("a feature that this release does not know", |entry| entry.0);
            return Err(CpuMismatch::Feature(name));
        }
        let wider = self.xsave_mask & !here.xsave_mask != 0 || self.xsave_size > here.xsave_size;
        // With equal component sets the layout must agree; with more components here it was checked component by component only
        // by the hash, so a superset is accepted by size alone.
        let differs = self.xsave_mask == here.xsave_mask && self.xsave_layout != here.xsave_layout;
        if wider || differs {
            return Err(CpuMismatch::Registers { here: here.xsave_size, saved: self.xsave_size });
        }
        Ok(())
    }
}

fn registers(leaf: u32, subleaf: u32) -> [u32; 4] {
    let result = __cpuid_count(leaf, subleaf);
    [result.eax, result.ebx, result.ecx, result.edx]
}

fn leaf_exists(leaf: u32) -> bool {
    registers(leaf & 0x8000_0000, 0)[0] >= leaf
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_runs_its_own_programs_and_names_what_another_lacks() {
        let here = Cpu::detect();
        assert_eq!(here.runs_on(&here), Ok(()));
        let avx2 = NAMES.iter().position(|entry| entry.0 == "avx2").unwrap();
        let saved = Cpu { features: here.features | 1 << avx2, ..here };
        let weaker = Cpu { features: here.features & !(1 << avx2), ..here };
        assert_eq!(saved.runs_on(&weaker), Err(CpuMismatch::Feature("avx2")));
        let saved = Cpu { features: here.features | 1 << 63, ..here };
        assert!(saved.runs_on(&here).is_err());
    }
}
