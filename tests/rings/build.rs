//! Sets `cfg(loom)` for this package alone. In RUSTFLAGS it would hold for every library, and all of them would be built again.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=loom");
}
