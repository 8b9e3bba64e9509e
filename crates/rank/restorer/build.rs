//! Links each restorer freestanding, at the start of its zone of addresses (`mend_image::ZONES`).

fn main() {
    for argument in [
        "-nostartfiles",
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,-z,norelro",
        "-Wl,-z,noexecstack",
        "-Wl,--build-id=none",
        "-Wl,--no-dynamic-linker",
    ] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    for (number, (start, _)) in mend_image::ZONES.into_iter().enumerate() {
        let name = if number == 0 { "mend-restorer".to_owned() } else { format!("mend-restorer-{number}") };
        // An option of lld, which is rustc's linker on this target. Start of the zone; the program's own tables follow 4 GiB later (src/zone.rs).
        println!("cargo:rustc-link-arg-bin={name}=-Wl,--image-base={start:#x}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
