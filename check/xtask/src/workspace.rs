//! The workspace as `cargo metadata` sees it: its crates, their folders, what they depend on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// When a dependency is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Table `[dependencies]` of the manifest.
    Normal,
    /// Table `[dev-dependencies]` of the manifest.
    Dev,
    /// Table `[build-dependencies]` of the manifest.
    Build,
}

/// One entry of a manifest's dependency tables.
#[derive(Debug, Clone)]
pub(crate) struct Dependency {
    /// The package's name.
    pub(crate) package: String,
    /// The name that the sources use.
    pub(crate) ident: String,
    /// Table of the manifest in which the entry stands.
    pub(crate) kind: Kind,
    /// Features that it turns on.
    pub(crate) features: Vec<String>,
}

/// A crate of the workspace.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// The package's name.
    pub(crate) name: String,
    /// Folder of the package, relative to the root: `crates/engine`.
    pub(crate) dir: PathBuf,
    /// Dependencies that the crate's manifest names.
    pub(crate) dependencies: Vec<Dependency>,
}

/// All crates of the workspace and the graph of everything that they need.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    /// Folder of the root `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// The crates, by folder.
    pub(crate) members: Vec<Member>,
    /// Packages that each package needs at run time, by package name, foreign packages included.
    pub(crate) needs: BTreeMap<String, BTreeSet<String>>,
}

impl Workspace {
    /// Asks cargo for the workspace. Uses the committed lock file and changes nothing. Packages
    /// that only other platforms need are neither downloaded nor seen.
    pub(crate) fn load() -> Result<Self, String> {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--locked"])
            .args(["--filter-platform", &host()?])
            .output()
            .map_err(|e| format!("cargo metadata does not start: {e}"))?;
        if !output.status.success() {
            return Err(format!(
                "cargo metadata failed (is Cargo.lock committed and up to date?):\n{}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        let metadata = serde_json::from_slice(&output.stdout)
            .map_err(|e| format!("cargo metadata printed no JSON: {e}"))?;
        Self::from_metadata(&metadata)
    }

    /// Reads what `cargo metadata --format-version 1` printed.
    pub(crate) fn from_metadata(metadata: &Value) -> Result<Self, String> {
        let root = PathBuf::from(text(metadata, "workspace_root")?);
        let ours: BTreeSet<&str> =
            list(metadata, "workspace_members")?.iter().filter_map(Value::as_str).collect();
        let mut members = Vec::new();
        let mut names = BTreeMap::new();
        for package in list(metadata, "packages")? {
            let id = text(package, "id")?;
            let name = text(package, "name")?;
            names.insert(id, name);
            if ours.contains(id) {
                members.push(member(&root, package)?);
            }
        }
        members.sort_by(|a, b| a.dir.cmp(&b.dir));
        let mut needs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for node in list(&metadata["resolve"], "nodes")? {
            let Some(name) = names.get(text(node, "id")?) else { continue };
            let of = needs.entry((*name).to_owned()).or_default();
            for dep in list(node, "deps")? {
                let at_run_time = list(dep, "dep_kinds")?.iter().any(|k| k["kind"].is_null());
                if let Some(needed) = names.get(text(dep, "pkg")?).filter(|_| at_run_time) {
                    of.insert((*needed).to_owned());
                }
            }
        }
        Ok(Self { root, members, needs })
    }

    /// The member of this package name.
    pub(crate) fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|m| m.name == name)
    }

    /// Everything that `package` needs at run time, directly or through others.
    pub(crate) fn reach(&self, package: &str) -> BTreeSet<&str> {
        let mut seen = BTreeSet::new();
        let mut open = vec![package];
        while let Some(name) = open.pop() {
            for next in self.needs.get(name).into_iter().flatten() {
                if seen.insert(next.as_str()) {
                    open.push(next);
                }
            }
        }
        seen
    }
}

/// The platform that cargo builds for here: `x86_64-unknown-linux-gnu`.
fn host() -> Result<String, String> {
    let output = Command::new(env!("CARGO")).arg("-vV").output();
    let output = output.map_err(|e| format!("cargo does not start: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "cargo -vV names no host".to_owned())
}

fn member(root: &Path, package: &Value) -> Result<Member, String> {
    let manifest = Path::new(text(package, "manifest_path")?);
    let dir = manifest.parent().unwrap_or(root);
    let dir = dir.strip_prefix(root).unwrap_or(dir).to_owned();
    let mut dependencies = Vec::new();
    for dep in list(package, "dependencies")? {
        let package = text(dep, "name")?.to_owned();
        let ident = dep["rename"].as_str().unwrap_or(&package).replace('-', "_");
        let kind = match dep["kind"].as_str() {
            Some("dev") => Kind::Dev,
            Some("build") => Kind::Build,
            _ => Kind::Normal,
        };
        let features = list(dep, "features")?.iter().filter_map(Value::as_str);
        let features = features.map(str::to_owned).collect();
        dependencies.push(Dependency { package, ident, kind, features });
    }
    Ok(Member { name: text(package, "name")?.to_owned(), dir, dependencies })
}

fn text<'a>(value: &'a Value, field: &str) -> Result<&'a str, String> {
    value[field].as_str().ok_or_else(|| format!("cargo metadata: no text in `{field}`"))
}

fn list<'a>(value: &'a Value, field: &str) -> Result<&'a [Value], String> {
    let array = value[field].as_array().map(Vec::as_slice);
    array.ok_or_else(|| format!("cargo metadata: no list in `{field}`"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{Dependency, Kind, Member, Workspace};

    /// A workspace of `(name, dir, names of what it depends on)`.
    pub(crate) fn sample(crates: &[(&str, &str, &[&str])]) -> Workspace {
        let mut workspace = Workspace::default();
        for (name, dir, needs) in crates {
            let dependency = |package: &&str| Dependency {
                package: (*package).to_owned(),
                ident: package.replace('-', "_"),
                kind: Kind::Normal,
                features: Vec::new(),
            };
            workspace.members.push(Member {
                name: (*name).to_owned(),
                dir: dir.into(),
                dependencies: needs.iter().map(dependency).collect(),
            });
            let needs = needs.iter().map(|&n| n.to_owned()).collect();
            workspace.needs.insert((*name).to_owned(), needs);
        }
        workspace
    }

    #[test]
    fn metadata_of_this_workspace_is_understood() {
        let workspace = Workspace::load().expect("cargo metadata");
        let xtask = workspace.member("xtask").expect("this crate");
        assert_eq!(xtask.dir, std::path::Path::new("check/xtask"));
        let proc_macro2 = xtask.dependencies.iter().find(|d| d.package == "proc-macro2");
        assert_eq!(proc_macro2.map(|d| d.ident.as_str()), Some("proc_macro2"));
        assert!(xtask.dependencies.iter().any(|d| d.kind == Kind::Dev && d.package == "tempfile"));
        assert!(workspace.reach("xtask").contains("unicode-ident"), "through syn");
        assert!(!workspace.reach("xtask").contains("tempfile"), "only for tests");
    }
}
