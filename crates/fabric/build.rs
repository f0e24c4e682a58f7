//! Finds libfabric and compiles the shim, if the feature `ofi` is on.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "ofi")]
    shim();
}

#[cfg(feature = "ofi")]
fn shim() {
    const SHIM: &str = "src/ofi/shim.c";
    println!("cargo::rerun-if-changed={SHIM}");
    let mut build = cc::Build::new();
    build.file(SHIM).std("gnu11").warnings(true).extra_warnings(true);
    if let Err(error) = build.try_compile("archipelago_ofi") {
        println!(
            "cargo::error=the feature `ofi` needs libfabric 1.17 or a later 1.x with its headers, and it did not compile \
             against what is here: install libfabric-dev (Debian, Ubuntu) or libfabric-devel (Fedora, RHEL), or set CFLAGS \
             to where the headers are. The compiler said: {error}"
        );
        return;
    }
    println!("cargo::rustc-link-lib=dylib=fabric");
}
