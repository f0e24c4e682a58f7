//! Parameters: no function destructures a tuple in its parameters, because a call then shows no
//! names and two values of one type can be exchanged.
//!
//! Closures are exempt: they get what an iterator gives them. An entry of the list is a path and a
//! function.

use syn::visit::Visit;

use crate::allow::Keyed;
use crate::report::Finding;
use crate::sources::Source;

/// The functions of all sources that destructure a tuple.
pub(crate) fn check(sources: &[Source]) -> Vec<Keyed> {
    let mut found = Vec::new();
    for source in sources {
        let mut functions = Functions::default();
        functions.visit_file(&source.tree);
        for (name, line) in functions.found {
            let message = format!(
                "`{name}` destructures a tuple: give it named parameters, or a struct with named \
                 fields"
            );
            let key = format!("{} {name}", source.path.display());
            found.push(Keyed::new(key, Finding::new(&source.path, line, message)));
        }
    }
    found
}

/// Name and line of each function, once for each tuple.
#[derive(Default)]
struct Functions {
    found: Vec<(String, usize)>,
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        for input in &signature.inputs {
            let syn::FnArg::Typed(typed) = input else { continue };
            if is_tuple(&typed.pat) {
                let line = signature.ident.span().start().line;
                self.found.push((signature.ident.to_string(), line));
            }
        }
    }
}

fn is_tuple(pattern: &syn::Pat) -> bool {
    match pattern {
        syn::Pat::Tuple(_) => true,
        syn::Pat::Reference(reference) => is_tuple(&reference.pat),
        syn::Pat::Paren(paren) => is_tuple(&paren.pat),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::sources::tests::source;

    #[test]
    fn destructured_tuples_are_found() {
        let text = "fn f((a, b): (u8, u8), c: u8) {}\nstruct S;\nimpl S {\n    \
                    fn g(&self, &(a, b): &(u8, u8)) {}\n}\ntrait T {\n    fn h((a, _): (u8, u8)) {}\n}\n";
        let found = check(&[source("a.rs", text)]);
        let keys: Vec<&str> = found.iter().map(|k| k.key.as_str()).collect();
        assert_eq!(keys, ["a.rs f", "a.rs g", "a.rs h"]);
        assert_eq!(found[1].finding.line, 4);
    }

    #[test]
    fn named_parameters_structs_and_closures_pass() {
        let text = "struct P(u8, u8);\nfn f(pair: (u8, u8), P(a, b): P) {\n    \
                    let g = |(a, b): (u8, u8)| a;\n    let (c, d) = pair;\n}\n";
        assert_eq!(check(&[source("a.rs", text)]), []);
    }
}
