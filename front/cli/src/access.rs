//! Flags that say which clients may connect: passwords and TLS.
//!
//! A password comes from a file or from the environment. It never comes from the command line,
//! which every user of the machine can read. A child process inherits the environment.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use archipelago::{Error, Result};
use archipelago_resp::access::Password;
use archipelago_resp::{ServerOptions, TlsOptions};

/// Environment variable that holds the password if `--password-file` is not given.
const VARIABLE: &str = "ARCHIPELAGO_PASSWORD";

/// Passwords of Redis clients.
#[derive(clap::Args, Debug)]
pub(crate) struct PasswordArgs {
    /// File with the password that Redis clients must give with AUTH: one line, at most 16 KiB.
    /// Without this flag the environment variable ARCHIPELAGO_PASSWORD holds the password. Without
    /// both there is no password, and only clients of this machine can be served
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Serve other machines without a password. Every program that reaches the port can then read
    /// and write all keys
    #[arg(long)]
    no_password: bool,
    /// Refused with a hint: redis-server has it
    #[arg(long, hide = true, value_name = "PASSWORD")]
    requirepass: Option<String>,
}

/// TLS for the connections of Redis clients.
#[derive(clap::Args, Debug)]
pub(crate) struct TlsArgs {
    /// File with the server's certificate (PEM), followed by the intermediate certificates up to
    /// the CA. The server then speaks TLS only
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File with the private key of the certificate (PEM, without a passphrase)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// File with CA certificates (PEM). The server then serves only clients with a certificate of
    /// one of these CAs
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
}

impl PasswordArgs {
    /// Puts the password into `options`.
    pub(crate) fn apply(&self, options: &mut ServerOptions) -> Result<()> {
        self.refuse_requirepass()?;
        options.password = self.password(std::env::var_os(VARIABLE).map(|text| {
            use std::os::unix::ffi::OsStringExt as _;
            text.into_vec()
        }))?;
        options.allow_unauthenticated = self.no_password;
        Ok(())
    }

    /// Flags of redis-cli for the password, with a blank before them.
    pub(crate) fn client_flags(&self) -> &'static str {
        match self.password_file.is_some() || std::env::var_os(VARIABLE).is_some() {
            true => " --askpass",
            false => "",
        }
    }

    /// The same flags, for a child process that requires the same password.
    pub(crate) fn words(&self) -> Vec<String> {
        let file = self.password_file.iter();
        let file = file.flat_map(|file| ["--password-file".to_owned(), file.display().to_string()]);
        file.chain(self.no_password.then(|| "--no-password".to_owned())).collect()
    }

    fn refuse_requirepass(&self) -> Result<()> {
        match self.requirepass {
            None => Ok(()),
            Some(_) => Err(Error::invalid(format!(
                "there is no --requirepass, because every user of this machine can read a command \
                 line: write the password into a file and give --password-file FILE, or set {VARIABLE}"
            ))),
        }
    }

    /// The password of the file, or of the environment variable, whose value is `variable`.
    fn password(&self, variable: Option<Vec<u8>>) -> Result<Option<Password>> {
        let (text, place) = match (&self.password_file, variable) {
            (Some(_), Some(_)) => {
                return Err(Error::invalid(format!(
                    "there are two passwords: give --password-file, or set {VARIABLE}, but not both"
                )));
            }
            (Some(file), None) => (read(file)?, format!("--password-file {}", file.display())),
            (None, Some(text)) => (text, VARIABLE.to_owned()),
            (None, None) => return Ok(None),
        };
        if self.no_password {
            return Err(Error::invalid(format!(
                "--no-password contradicts {place}: leave one of them out"
            )));
        }
        Password::new(&text).map(Some).map_err(|error| error.context_at(place))
    }
}

impl TlsArgs {
    pub(crate) fn options(&self) -> Option<TlsOptions> {
        let (certificate, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(TlsOptions { certificate, key, client_ca: self.tls_client_ca.clone() })
    }

    /// Flags of redis-cli for TLS, with a blank before them.
    pub(crate) fn client_flags(&self) -> &'static str {
        match (&self.tls_cert, &self.tls_client_ca) {
            (None, _) => "",
            (Some(_), None) => " --tls --cacert CA",
            (Some(_), Some(_)) => " --tls --cacert CA --cert CERTIFICATE --key KEY",
        }
    }
}

/// The text of a file that has one line, without the end of the line.
fn read(file: &Path) -> Result<Vec<u8>> {
    let failed = |source| Error::io("read the password in", file, source);
    #[expect(clippy::disallowed_methods, reason = "the operator's file, not the store's")]
    let mut text = std::fs::read(file).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode();
    if mode & 0o007 != 0 {
        tracing::warn!(file = %file.display(), "every user of this machine may read the password file: run chmod o= FILE");
    }
    if text.last() == Some(&b'\n') {
        text.pop();
        text.pop_if(|byte| *byte == b'\r');
    }
    if text.contains(&b'\n') {
        return Err(Error::invalid(format!(
            "--password-file {}: it has more than one line: write the password alone into it",
            file.display()
        )));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(file: Option<&Path>, no_password: bool) -> PasswordArgs {
        PasswordArgs { password_file: file.map(Path::to_owned), no_password, requirepass: None }
    }

    #[test]
    fn password_is_one_line_of_a_file_or_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        let write = |text: &str| {
            #[expect(clippy::disallowed_methods, reason = "an operator's file")]
            std::fs::write(&file, text).unwrap();
        };
        for text in ["open sesame", "open sesame\n", "open sesame\r\n"] {
            write(text);
            let password = args(Some(&file), false).password(None).unwrap().unwrap();
            assert!(password.is(b"open sesame"), "{text:?}");
        }
        let variable = Some(b"sesame".to_vec());
        assert!(args(None, false).password(variable.clone()).unwrap().unwrap().is(b"sesame"));
        assert!(args(None, true).password(None).unwrap().is_none());
        let refusal = |args: PasswordArgs, variable: Option<Vec<u8>>| {
            args.password(variable).unwrap_err().to_string()
        };
        assert!(refusal(args(Some(&file), false), variable.clone()).contains("two passwords"));
        assert!(refusal(args(None, true), variable).contains("--no-password contradicts"));
        assert!(refusal(args(None, false), Some(Vec::new())).contains("empty"));
        for (text, why) in [("", "empty"), ("\n", "empty"), ("a\nb\n", "more than one line")] {
            write(text);
            assert!(refusal(args(Some(&file), false), None).contains(why), "{text:?}");
        }
        let missing = dir.path().join("missing");
        assert!(refusal(args(Some(&missing), false), None).contains("missing"));
    }
}
