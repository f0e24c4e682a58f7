//! Panic hook: names the extension that was running, after Rust's own message.
//!
//! The release build ends the process at a panic (`panic = "abort"`). A job therefore cannot fail
//! with an error that names the merge operator, compaction filter or listener. The message of the
//! hook is the only place that can say whose code panicked.

/// Makes every later panic of the process call `say` with the name of the running extension. A
/// panic outside extensions does not call it.
pub(crate) fn name_extensions(say: impl Fn(&str) + Send + Sync + 'static) {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        if let Some(extension) = archipelago::running_extension() {
            say(&format!(
                "archipelago: the panic came out of the {extension}: correct the code of this extension"
            ));
        }
    }));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use archipelago::{CfOptions, Components, Db, DbOptions, MergeOperator, Result, WriteOptions};

    struct Fragile;

    impl MergeOperator for Fragile {
        fn name(&self) -> &str {
            "fragile"
        }

        fn full_merge(&self, _: &[u8], _: Option<&[u8]>, _: &[&[u8]]) -> Result<Vec<u8>> {
            panic!("on purpose")
        }
    }

    #[test]
    fn panic_message_names_the_running_extension() {
        let dir = tempfile::tempdir().expect("a directory");
        let merge_operator = Some("fragile".to_owned());
        let family = CfOptions { merge_operator, ..CfOptions::default() };
        let families = [("default".to_owned(), family)].into_iter().collect();
        let mut components = Components { families, ..Components::default() };
        components.registry.add_merge_operator(Arc::new(Fragile));
        let db = Db::open_with(dir.path(), DbOptions::default(), components).expect("opens");
        let cf = db.default_family();
        db.merge(cf, b"key", b"operand", &WriteOptions::default()).expect("merges");
        let (say, said) = channel();
        super::name_extensions(move |text| drop(say.send(text.to_owned())));
        db.get(b"key").expect_err("the operator panics");
        let text = said.recv().expect("the hook was called");
        assert!(text.contains("merge operator \"fragile\" of column family \"default\""), "{text}");
    }
}
