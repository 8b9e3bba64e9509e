//! What a processor can do, as far as a running program may have noticed.
//!
//! A C library picks its `memcpy` once, at start; a restored process goes on using it. So the target must offer all
//! that the source offered. Bits are ours, in the order of [`NAMES`]; new ones are only ever appended.
//!
//! A process may rely on what its present processor offers: each one before it offered no more. It may have asked what there is at its
//! start, or later: a library that was loaded an hour ago asked then.

use core::fmt;

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
    ("xsaveopt", (0xd, 1, 0, 0)),
    ("xsavec", (0xd, 1, 0, 1)),
    ("xgetbv1", (0xd, 1, 0, 2)),
    ("avx512pf", (7, 0, 1, 26)),
    ("avx512er", (7, 0, 1, 27)),
    ("avx512_4vnniw", (7, 0, 3, 2)),
    ("avx512_4fmaps", (7, 0, 3, 3)),
    ("avx512_vp2intersect", (7, 0, 3, 8)),
    ("ospke", (7, 0, 2, 4)),
    ("waitpkg", (7, 0, 2, 5)),
    ("cldemote", (7, 0, 2, 25)),
    ("enqcmd", (7, 0, 2, 29)),
    ("sha512", (7, 1, 0, 0)),
    ("sm3", (7, 1, 0, 1)),
    ("sm4", (7, 1, 0, 2)),
    ("raoint", (7, 1, 0, 3)),
    ("cmpccxadd", (7, 1, 0, 7)),
    ("amx_fp16", (7, 1, 0, 21)),
    ("avx_ifma", (7, 1, 0, 23)),
    ("avx_vnni_int8", (7, 1, 3, 4)),
    ("avx_ne_convert", (7, 1, 3, 5)),
    ("amx_complex", (7, 1, 3, 8)),
    ("avx_vnni_int16", (7, 1, 3, 10)),
    ("prefetchi", (7, 1, 3, 14)),
    ("avx10", (7, 1, 3, 19)),
    ("apx_f", (7, 1, 3, 21)),
    ("lahf_lm", (0x8000_0001, 0, 2, 0)),
    ("mwaitx", (0x8000_0001, 0, 2, 29)),
    ("3dnowext", (0x8000_0001, 0, 3, 30)),
    ("3dnow", (0x8000_0001, 0, 3, 31)),
    ("clzero", (0x8000_0008, 0, 1, 0)),
    ("rdpru", (0x8000_0008, 0, 1, 4)),
];

/// State components whose place in the xsave area is recorded: 2 (AVX) to 19 (APX); 17 and 18 are AMX.
const STATE_COMPONENTS: core::ops::Range<u32> = 2..20;
const STATE_COMPONENT_COUNT: usize = 18;

/// State components of MPX. Linux has not saved them since 5.6. Images of before Mend asked what is enabled name them all the same.
const MPX: u64 = 0b11000;

/// Features of a processor, as a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Features(pub [u64; 2]);

const _: () = assert!(NAMES.len() <= 128);

impl Features {
    /// Those of a list of names, separated by commas. `all` names every one.
    ///
    /// # Errors
    /// The first word that is no name of a feature.
    pub fn named(list: &str) -> Result<Self, &str> {
        let mut found = Self::default();
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match NAMES.iter().position(|(name, _)| *name == word) {
                Some(bit) => found.insert(bit),
                None if word == "all" => found = Self([u64::MAX; 2]),
                None => return Err(word),
            }
        }
        Ok(found)
    }

    /// The names as [`Features::named`] reads them.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn list(self) -> std::string::String {
        self.names().collect::<std::vec::Vec<_>>().join(",")
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == [0; 2]
    }

    /// Those that are in either set.
    #[must_use]
    pub fn with(self, more: Self) -> Self {
        Self([self.0[0] | more.0[0], self.0[1] | more.0[1]])
    }

    /// Those that are not in the other set.
    #[must_use]
    pub fn without(self, others: Self) -> Self {
        Self([self.0[0] & !others.0[0], self.0[1] & !others.0[1]])
    }

    fn insert(&mut self, bit: usize) {
        self.0[bit / 64] |= 1 << (bit % 64);
    }

    fn has(self, bit: usize) -> bool {
        self.0[bit / 64] & 1 << (bit % 64) != 0
    }

    /// Their names. A bit that this release has no name for is named so.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let name = |bit: usize| NAMES.get(bit).map_or("a feature that this release does not know", |entry| entry.0);
        (0..128).filter(move |&bit| self.has(bit)).map(name)
    }
}

impl fmt::Display for Features {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.names().enumerate().try_for_each(|(at, name)| write!(formatter, "{}{name}", if at == 0 { "" } else { ", " }))
    }
}

/// What a processor offers to programs, and how the kernel lays out the registers of one that is interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Cpu {
    /// What programs may find.
    pub features: Features,
    /// State components that the kernel has enabled (XCR0).
    pub enabled: u64,
    /// Bytes of the xsave area for these (CPUID 0xD.0, ebx).
    pub area: u64,
    /// Size and offset of each component from the second on, 0 for those that the processor does not know.
    pub components: [(u32, u32); STATE_COMPONENT_COUNT],
}

/// What a saved program needs of a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CpuNeeds {
    /// What the program may be using.
    pub features: Features,
    /// State components that its saved registers may have.
    pub xsave_mask: u64,
    /// Bytes of the area that they were saved in.
    pub xsave_size: u64,
    /// xxh3 of size and offset of each component: vendors lay the area out differently.
    pub xsave_layout: u64,
}

/// Why a program of one processor cannot go on on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum CpuMismatch {
    /// These are not there.
    #[error("this machine's processor lacks {0}, which the saved program may be using")]
    Features(Features),
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
    /// The processor whose CPUID instruction answers so, by leaf and subleaf with eax, ebx, ecx, edx, and whose XCR0 is this.
    pub fn read(cpuid: impl Fn(u32, u32) -> [u32; 4], enabled: u64) -> Self {
        let exists = |leaf: u32, subleaf: u32| {
            let highest = cpuid(leaf & 0x8000_0000, 0)[0];
            highest >= leaf && (leaf != 7 || subleaf == 0 || cpuid(7, 0)[0] >= subleaf)
        };
        let mut found = Self { enabled, ..Self::default() };
        let mut last = None;
        for (bit, &(_, (leaf, subleaf, register, position))) in NAMES.iter().enumerate() {
            // One answer has many features, and in a virtual machine each question takes long.
            let registers = match last {
                Some((asked, registers)) if asked == (leaf, subleaf) => registers,
                _ if exists(leaf, subleaf) => cpuid(leaf, subleaf),
                _ => [0; 4],
            };
            last = Some(((leaf, subleaf), registers));
            if registers[register] & 1 << position != 0 {
                found.features.insert(bit);
            }
        }
        if exists(0xd, 0) {
            let [low, area, _, high] = cpuid(0xd, 0);
            let known = u64::from(low) | u64::from(high) << 32;
            found.area = u64::from(area);
            for (component, place) in STATE_COMPONENTS.zip(&mut found.components) {
                if known & 1 << component != 0 {
                    let [size, offset, ..] = cpuid(0xd, component);
                    *place = (size, offset);
                }
            }
        }
        found
    }

    /// What a program that is saved here needs elsewhere, if it uses none of the features in `unused`.
    #[must_use]
    pub fn needs(&self, unused: Features) -> CpuNeeds {
        CpuNeeds {
            features: self.features.without(unused),
            xsave_mask: self.enabled,
            xsave_size: self.area,
            xsave_layout: self.layout(self.enabled),
        }
    }

    fn layout(&self, mask: u64) -> u64 {
        let mut layout = [0u8; 8 * STATE_COMPONENT_COUNT];
        for ((component, slot), (size, offset)) in STATE_COMPONENTS.zip(layout.chunks_exact_mut(8)).zip(self.components) {
            if mask & 1 << component != 0 {
                slot[..4].copy_from_slice(&size.to_le_bytes());
                slot[4..].copy_from_slice(&offset.to_le_bytes());
            }
        }
        xxhash_rust::xxh3::xxh3_64(&layout)
    }
}

impl CpuNeeds {
    /// Whether a program that needs this can go on on `here`.
    ///
    /// # Errors
    /// What `here` lacks.
    pub fn runs_on(&self, here: &Cpu) -> Result<(), CpuMismatch> {
        let missing = self.features.without(here.features);
        if !missing.is_empty() {
            return Err(CpuMismatch::Features(missing));
        }
        let lacks = self.xsave_mask & !(here.enabled | MPX) != 0 || self.xsave_size > here.area;
        // Each component that was saved must have the same place. Others may be there besides.
        if lacks || self.xsave_mask != 0 && self.xsave_layout != here.layout(self.xsave_mask) {
            return Err(CpuMismatch::Registers { here: here.area, saved: self.xsave_size });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(list: &str) -> Features {
        Features::named(list).unwrap()
    }

    /// A processor with AVX-512 whose components lie where Intel puts them, or where AMD does.
    fn wide(amd: bool) -> impl Fn(u32, u32) -> [u32; 4] {
        move |leaf, subleaf| match (leaf, subleaf) {
            (0, _) => [0xd, 0, 0, 0],
            // sse4_2, xsave, avx
            (1, _) => [0, 0, 1 << 20 | 1 << 26 | 1 << 28, 0],
            // avx2, avx512f; one more subleaf
            (7, 0) => [1, 1 << 5 | 1 << 16, 0, 0],
            // avx_vnni, avx512_bf16
            (7, 1) => [1 << 4 | 1 << 5, 0, 0, 0],
            (0xd, 0) => [0xe7, if amd { 2432 } else { 2688 }, 2688, 0],
            (0xd, 1) => [0b11, 0, 0, 0],
            (0xd, 2) => [256, 576, 0, 0],
            (0xd, 5) => [64, if amd { 832 } else { 1088 }, 0, 0],
            (0xd, 6) => [512, if amd { 896 } else { 1152 }, 0, 0],
            (0xd, 7) => [1024, if amd { 1408 } else { 1664 }, 0, 0],
            (0x8000_0000, _) => [0x8000_0001, 0, 0, 0],
            // lzcnt, rdtscp
            (0x8000_0001, _) => [0, 0, 1 << 5, 1 << 27],
            _ => [u32::MAX; 4],
        }
    }

    /// One of before AVX-512.
    fn narrow(leaf: u32, subleaf: u32) -> [u32; 4] {
        match (leaf, subleaf) {
            (0, _) => [0xd, 0, 0, 0],
            (1, _) => [0, 0, 1 << 20 | 1 << 26 | 1 << 28, 0],
            (7, 0) => [0, 1 << 5, 0, 0],
            (0xd, 0) => [0x7, 832, 832, 0],
            (0xd, 1) => [0b11, 0, 0, 0],
            (0xd, 2) => [256, 576, 0, 0],
            (0x8000_0000, _) => [0x8000_0001, 0, 0, 0],
            (0x8000_0001, _) => [0, 0, 1 << 5, 1 << 27],
            _ => [u32::MAX; 4],
        }
    }

    #[test]
    fn features_are_read_from_the_leaves_that_there_are() {
        let all = "sse4_2,xsave,avx,avx2,avx512f,avx_vnni,avx512_bf16,xsaveopt,xsavec,lzcnt,rdtscp";
        assert_eq!(Cpu::read(wide(false), 0xe7).features, named(all));
        // Leaf 7 has no further subleaf here, and there is no leaf 0x80000008: what CPUID answers then means nothing.
        assert_eq!(Cpu::read(narrow, 7).features, named("sse4_2,xsave,avx,avx2,xsaveopt,xsavec,lzcnt,rdtscp"));
        let old = Cpu::read(|leaf, _| if leaf == 0 { [1, 0, 0, 0] } else { [0, 0, 1 << 20, 0] }, 0);
        assert_eq!(old, Cpu { features: named("sse4_2"), ..Cpu::default() });
    }

    #[test]
    fn a_program_goes_to_where_all_is_that_it_may_use() {
        let (wide, narrow) = (Cpu::read(wide(false), 0xe7), Cpu::read(narrow, 7));
        for cpu in [&wide, &narrow] {
            assert_eq!(cpu.needs(Features::default()).runs_on(cpu), Ok(()));
        }
        assert_eq!(narrow.needs(Features::default()).runs_on(&wide), Ok(()));
        let missing = wide.needs(Features::default()).runs_on(&narrow).unwrap_err();
        assert_eq!(missing, CpuMismatch::Features(named("avx512f,avx_vnni,avx512_bf16")));
        assert!(missing.to_string().contains("lacks avx512f, avx_vnni, avx512_bf16, "), "{missing}");
        // It does not use them, but its threads' registers were saved with their places.
        let unused = named("avx512f,avx_vnni,avx512_bf16");
        assert_eq!(wide.needs(unused).runs_on(&narrow), Err(CpuMismatch::Registers { here: 832, saved: 2688 }));
        // Where the kernel does not enable these registers, nobody has them.
        let held_back = Cpu { enabled: 7, area: 832, ..wide };
        assert_eq!(held_back.needs(unused).runs_on(&narrow), Ok(()));
        assert!(wide.needs(Features::default()).runs_on(&held_back).is_err());
    }

    #[test]
    fn registers_that_lie_elsewhere_are_refused() {
        let (intel, amd) = (Cpu::read(wide(false), 0xe7), Cpu::read(wide(true), 0xe7));
        let refused = Err(CpuMismatch::Registers { here: 2688, saved: 2432 });
        assert_eq!(amd.needs(Features::default()).runs_on(&intel), refused);
        // More components change nothing about it.
        let more = Cpu { enabled: 0x2e7, ..intel };
        assert_eq!(amd.needs(Features::default()).runs_on(&more), refused);
        assert_eq!(intel.needs(Features::default()).runs_on(&more), Ok(()));
    }

    #[test]
    fn lists_of_names_are_read() {
        assert_eq!(named(" avx2, fma ,").to_string(), "fma, avx2");
        assert_eq!(named(&named("avx2,fma").list()), named("fma,avx2"));
        assert_eq!(named("").to_string(), "");
        assert_eq!(Features::named("avx2,avx3"), Err("avx3"));
        assert_eq!(Features::named("AVX2"), Err("AVX2"));
        assert!(NAMES.iter().all(|(name, _)| Features([0; 2]).with(named("all")).without(named(name)) != named("all")));
        for (bit, (name, _)) in NAMES.iter().enumerate() {
            assert_eq!(named(name).names().collect::<std::vec::Vec<_>>(), [*name], "bit {bit}");
        }
        assert_eq!(Features([0, 1 << 63]).to_string(), "a feature that this release does not know");
    }
}
