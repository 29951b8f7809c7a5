//! TLS of `gesta serve`: which files it uses, and how it makes a certificate for trying out.
//!
//! Why the key of the authority is not kept: whoever has it could make certificates that are believed by every client
//! which was told to believe this authority. A new certificate is made after the folder is removed.
//! Invariant: `ca.pem` is there only if everything else is, so a folder that was left half-way is made again.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use gesta_core::HostPort;
use gesta_server::TlsFiles;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::config::Tls;
use crate::exit::{Failure, Outcome};
use crate::private_file;

/// The files in the folder of a certificate for trying out.
const CA: &str = "ca.pem";
const CERTIFICATE: &str = "server.pem";
const KEY: &str = "server.key";
/// The mode of a private key, which only its owner may read.
const KEY_MODE: u32 = 0o600;
const CERTIFICATE_MODE: u32 = 0o644;

/// Returns the files of TLS, if it is configured.
pub(super) fn files(
    tls: &Tls,
    listen: SocketAddr,
    advertised: Option<&HostPort>,
) -> Outcome<Option<TlsFiles>> {
    let refuse = |why: &str| Err(Failure::usage(format!("configuration: {why}")));
    let own = (tls.certificate.as_str(), tls.key.as_str());
    let mut files = match (own, tls.self_signed.as_str()) {
        (("", ""), "") if tls.client_ca.is_empty() => return Ok(None),
        (("", ""), "") => return refuse("tls.client_ca needs a certificate of the server"),
        (("", ""), folder) => self_signed(Path::new(folder), listen.ip(), advertised)?,
        (("", _) | (_, ""), _) => {
            return refuse("tls.certificate and tls.key must be given together");
        }
        ((certificate, key), "") => {
            private_file::warn_of_others("the private key of TLS", key.as_ref());
            TlsFiles::new(certificate, key)
        }
        _ => return refuse("tls.self_signed must not stand beside tls.certificate"),
    };
    files.client_ca = (!tls.client_ca.is_empty()).then(|| tls.client_ca.clone().into());
    Ok(Some(files))
}

/// Returns the files of a certificate for this machine in this folder. They are made unless they are there.
fn self_signed(folder: &Path, address: IpAddr, advertised: Option<&HostPort>) -> Outcome<TlsFiles> {
    let ca = folder.join(CA);
    let is_there = ca.try_exists().map_err(|error| {
        Failure::other(format!(
            "the certificate of our own, {}, cannot be looked at: {error}",
            ca.display()
        ))
    })?;
    if !is_there {
        make(folder, address, advertised).map_err(|error| {
            Failure::other(format!(
                "a certificate of our own in {}: {error}",
                folder.display()
            ))
        })?;
    }
    let ca = fs::canonicalize(&ca).unwrap_or(ca);
    let ca = ca.display();
    tracing::info!(
        "TLS with a certificate of our own, for trying out: clients must be told to believe its authority, such as by \
         curl --cacert {ca} or gesta --ca-file {ca}"
    );
    Ok(TlsFiles::new(folder.join(CERTIFICATE), folder.join(KEY)))
}

type MakeError = Box<dyn std::error::Error + Send + Sync>;

fn make(folder: &Path, address: IpAddr, advertised: Option<&HostPort>) -> Result<(), MakeError> {
    private_file::create_folders(folder)?;
    let (authority_key, key) = (KeyPair::generate()?, KeyPair::generate()?);
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    name(&mut authority, "Gesta authority for trying out");
    let ca = authority.self_signed(&authority_key)?.pem();
    let issuer = Issuer::new(authority, authority_key);
    let certificate = of_server(address, advertised)?.signed_by(&key, &issuer)?;
    write(folder, KEY, &key.serialize_pem(), KEY_MODE)?;
    write(folder, CERTIFICATE, &certificate.pem(), CERTIFICATE_MODE)?;
    write(folder, CA, &ca, CERTIFICATE_MODE)?;
    Ok(())
}

fn name(params: &mut CertificateParams, name: &str) {
    params.distinguished_name.push(DnType::CommonName, name);
}

/// Describes a certificate for every name by which this machine is likely to be called.
fn of_server(
    address: IpAddr,
    advertised: Option<&HostPort>,
) -> Result<CertificateParams, MakeError> {
    let mut names = vec!["localhost".to_owned()];
    names.extend(host_name());
    // A name that is an address becomes one in the certificate.
    let advertised = advertised.map(|own| own.host().to_owned());
    names.extend(
        advertised.filter(|own| !names.contains(own) && own != "127.0.0.1" && own != "::1"),
    );
    let mut params = CertificateParams::new(names)?;
    let mut addresses = vec![
        IpAddr::from([127, 0, 0, 1]),
        IpAddr::from([0u16, 0, 0, 0, 0, 0, 0, 1]),
    ];
    let more = match address.is_unspecified() {
        true => own_addresses(),
        false => vec![address],
    };
    for own in more {
        if !addresses.contains(&own) {
            addresses.push(own);
        }
    }
    let addresses = addresses.into_iter().map(SanType::IpAddress);
    params.subject_alt_names.extend(addresses);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    name(&mut params, "Gesta server for trying out");
    Ok(params)
}

/// Returns the addresses by which this machine would call others, and so by which most of them reach it. Nothing is
/// sent: the system only chooses a way.
fn own_addresses() -> Vec<IpAddr> {
    // Documentation addresses, which belong to nobody.
    let ways = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    let found = ways.into_iter().filter_map(|(from, to)| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    });
    found.collect()
}

/// Returns the name of this machine, if it can be known and may be part of a certificate.
fn host_name() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name = name.trim();
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
    (!name.is_empty() && name != "localhost" && name.chars().all(fits)).then(|| name.to_owned())
}

/// Writes a file whole or not at all.
fn write(folder: &Path, name: &str, text: &str, mode: u32) -> std::io::Result<()> {
    let new = folder.join(format!("{name}.new"));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(new, folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Goal: what is there is used again, what was left half-way is made again, and only its owner may read the key.
    #[test]
    fn a_certificate_of_our_own_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("tls");
        let address = IpAddr::from([127, 0, 0, 1]);
        let files = self_signed(&folder, address, None).unwrap();
        let read = || fs::read_to_string(folder.join(CERTIFICATE)).unwrap();
        let first = read();
        self_signed(&folder, address, None).unwrap();
        assert_eq!(read(), first);
        fs::remove_file(folder.join(CA)).unwrap();
        self_signed(&folder, address, None).unwrap();
        assert_ne!(read(), first);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&files.key), KEY_MODE);
        assert_eq!(mode(&folder), 0o700);
        let left: Vec<_> = fs::read_dir(&folder).unwrap().collect();
        assert_eq!(left.len(), 3, "{left:?}");
    }

    #[test]
    fn halves_and_contradictions_are_refused() {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let tls = |certificate: &str, key: &str, client_ca: &str, self_signed: &str| {
            let tls = Tls {
                certificate: certificate.into(),
                key: key.into(),
                client_ca: client_ca.into(),
                self_signed: self_signed.into(),
            };
            files(&tls, listen, None)
        };
        assert_eq!(tls("", "", "", "").unwrap(), None);
        let found = tls("c", "k", "a", "").unwrap().unwrap();
        assert_eq!(found.client_ca, Some("a".into()));
        for (certificate, key, client_ca, self_signed) in [
            ("c", "", "", ""),
            ("", "k", "", ""),
            ("", "k", "", "d"),
            ("", "", "a", ""),
            ("c", "k", "", "d"),
        ] {
            assert!(tls(certificate, key, client_ca, self_signed).is_err());
        }
    }
}
