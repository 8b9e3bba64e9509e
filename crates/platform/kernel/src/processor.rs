//! The processor that this runs on: what CPUID says of it, and which registers the kernel has enabled.

use mend_image::cpu::Cpu;
use std::arch::x86_64::{__cpuid, __cpuid_count};

/// Bit of CPUID leaf 1, ecx: the kernel uses XSAVE, and programs may read XCR0.
const OSXSAVE: u32 = 1 << 27;

/// What it offers. In a virtual machine each question is answered by the hypervisor: this takes half a millisecond there.
#[must_use]
pub fn detect() -> Cpu {
    let registers = |leaf, subleaf| {
        let found = __cpuid_count(leaf, subleaf);
        [found.eax, found.ebx, found.ecx, found.edx]
    };
    Cpu::read(registers, enabled_state())
}

/// XCR0: the state components that the kernel keeps for each thread.
fn enabled_state() -> u64 {
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return 0;
    }
    let (low, high): (u32, u32);
    // SAFETY: with OSXSAVE set the instruction is there for programs; it reads register 0, which there always is.
    unsafe { core::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack)) };
    u64::from(low) | u64::from(high) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use mend_image::cpu::{Features, NAMES};

    #[test]
    fn this_processor_is_described_as_the_kernel_describes_it() {
        let here = detect();
        assert_eq!(here.needs(Features::default()).runs_on(&here), Ok(()));
        assert!(here.enabled & 3 == 3 && here.area >= 576, "{here:?}");
        let told = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags = told.lines().find_map(|line| line.strip_prefix("flags")).unwrap();
        let flags: Vec<&str> = flags.trim_start_matches(|c: char| c.is_whitespace() || c == ':').split(' ').collect();
        // The kernel may keep names to itself, but says nothing of what is not there. It has names of its own for these.
        let renamed = |name: &str| {
            match name {
                "sse3" => "pni",
                "lzcnt" => "abm",
                _ => return name.to_owned(),
            }
            .to_owned()
        };
        // The kernel takes this one for granted on some processors, whatever CPUID says: elsewhere the instruction does nothing.
        for (name, _) in NAMES.iter().filter(|(name, _)| *name != "prefetchw") {
            let there = here.features.names().any(|found| found == *name);
            assert!(there || !flags.contains(&&*renamed(name)), "{name}: {there}");
        }
    }
}
