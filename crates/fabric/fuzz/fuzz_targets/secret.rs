//! Reads the text of a secret's file. A secret is never printed.
#![no_main]

use archipelago_fabric::Secret;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Some(secret) = Secret::parse(text) {
        let cluster = secret.cluster().to_string();
        assert!(text.contains(&cluster));
        assert_eq!(format!("{secret:?}"), format!("Secret(cluster {cluster})"));
    }
});
