//! Links the restorer freestanding, at the start of the zone that no image may use (`mend_image::ZONE`).

fn main() {
    for argument in [
        "-nostartfiles",
        "-nostdlib",
        "-static",
        "-no-pie",
        // An option of lld, which is rustc's linker on this target. Start of the zone; the program's own tables follow 4 GiB later (src/arena.rs).
        "-Wl,--image-base=0x1f0000000000",
        "-Wl,-z,norelro",
        "-Wl,-z,noexecstack",
        "-Wl,--build-id=none",
        "-Wl,--no-dynamic-linker",
    ] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
