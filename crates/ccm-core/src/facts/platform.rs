//! Distribution: name, family and version, from the release files in `/etc`.
//!
//! Many distributions ship several of these files; the first one with content decides.

use super::files::{self, FactPaths};

/// A distribution.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Platform {
    pub(super) name: String,
    pub(super) family: &'static str,
    pub(super) version: String,
}

/// Returns the distribution; unknown fields are empty.
pub(super) fn detect(paths: &FactPaths) -> Platform {
    let (name, version) = name_and_version(paths);
    let name = name.trim_matches('"').to_owned();
    Platform {
        family: family(&name),
        name,
        version,
    }
}

fn name_and_version(paths: &FactPaths) -> (String, String) {
    let first = |names: &[&str]| names.iter().find_map(|name| release(paths, name));
    if let Some(text) = first(&["oracle-release", "enterprise-release"]) {
        return ("oracle".into(), redhat_version(&text));
    }
    if let Some(text) = first(&["slackware-version"]) {
        return ("slackware".into(), slackware_version(&text));
    }
    if let Some(text) = first(&["debian_version"]) {
        return debian(paths, &text);
    }
    if let Some(text) = first(&["neokylin-release", "redhat-release", "system-release"]) {
        return (redhat_name(&text), redhat_version(&text));
    }
    if let Some(text) = first(&["gentoo-release"]) {
        return ("gentoo".into(), redhat_version(&text));
    }
    if let Some(text) = first(&["SuSE-release"]) {
        return (suse_name(&text).into(), suse_version(&text));
    }
    if first(&["arch-release"]).is_some() {
        return ("arch".into(), Lsb::read(paths).release);
    }
    if let Some(text) = first(&["alpine-release"]) {
        return ("alpine".into(), first_line(&text));
    }
    if let Some(text) = first(&["os-release"]) {
        return (os_id(&text), assigned(&text, "VERSION_ID"));
    }
    let lsb = Lsb::read(paths);
    let name = match lsb.id.as_str() {
        "ScientificSL" => "scientific".into(),
        id => id.to_lowercase(),
    };
    (name, lsb.release)
}

/// Returns the text of a release file, unless it is blank.
fn release(paths: &FactPaths, name: &str) -> Option<String> {
    files::text(&paths.etc.join(name)).filter(|text| !text.trim().is_empty())
}

/// Returns the `ID` of an os-release file; `amzn` becomes `amazon`.
pub(super) fn os_id(os_release: &str) -> String {
    match assigned(os_release, "ID").as_str() {
        "amzn" => "amazon".into(),
        id => id.into(),
    }
}

/// Content of `lsb-release`.
struct Lsb {
    id: String,
    release: String,
}

impl Lsb {
    fn read(paths: &FactPaths) -> Self {
        let text = release(paths, "lsb-release").unwrap_or_default();
        Self {
            id: assigned(&text, "DISTRIB_ID"),
            release: assigned(&text, "DISTRIB_RELEASE"),
        }
    }
}

/// Returns the last value of a name in lines of `NAME=value`, unquoted.
fn assigned(text: &str, name: &str) -> String {
    let value = text.lines().rev().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == name).then(|| value.trim())
    });
    let value = value.unwrap_or_default();
    ['"', '\'']
        .into_iter()
        .find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote))
        .unwrap_or(value)
        .into()
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().into()
}

/// Derivatives of Debian have the same file; `lsb-release` distinguishes them.
fn debian(paths: &FactPaths, debian_version: &str) -> (String, String) {
    let lsb = Lsb::read(paths);
    let derivative = match lsb.id.as_str() {
        "Ubuntu" => "ubuntu",
        "LinuxMint" => "linuxmint",
        "Cumulus Linux" => "cumuluslinux",
        id @ ("Kylin" | "uos" | "Deepin") => id,
        _ if paths.root.join("usr/bin/raspi-config").exists() => {
            return ("raspbian".into(), first_line(debian_version));
        }
        _ => return ("debian".into(), first_line(debian_version)),
    };
    (derivative.into(), lsb.release)
}

fn redhat_name(text: &str) -> String {
    let text = text.to_lowercase();
    if text.contains("red hat") {
        return "redhat".into();
    }
    text.split_whitespace().next().unwrap_or_default().into()
}

/// Returns the version in a line like `Rocky Linux release 9.3 (Blue Onyx)`.
fn redhat_version(text: &str) -> String {
    let text = text.to_lowercase();
    if text.contains("rawhide") {
        return "rawhide".into();
    }
    text.split("release ")
        .skip(1)
        .map(version_at_start)
        .find(|version| !version.is_empty())
        .unwrap_or_default()
        .into()
}

/// Returns a leading letter or digit and the digits and dots that follow.
fn version_at_start(text: &str) -> &str {
    if !text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        return "";
    }
    let end = text
        .char_indices()
        .skip(1)
        .find(|(_, c)| !c.is_ascii_digit() && *c != '.')
        .map_or(text.len(), |(at, _)| at);
    text.get(..end).unwrap_or_default()
}

fn slackware_version(text: &str) -> String {
    let text = text.to_lowercase();
    text.trim().replacen("slackware ", "", 1)
}

fn suse_name(text: &str) -> &'static str {
    if text.to_lowercase().contains("opensuse") {
        "opensuse"
    } else {
        "suse"
    }
}

fn suse_version(text: &str) -> String {
    let version = assigned(text, "VERSION");
    match assigned(text, "PATCHLEVEL") {
        level if level.is_empty() => version,
        level => format!("{version}.{level}"),
    }
}

fn family(name: &str) -> &'static str {
    match name {
        "debian" | "ubuntu" | "linuxmint" | "raspbian" | "Kylin" | "cumuluslinux" | "uos"
        | "Deepin" => "debian",
        "fedora" => "fedora",
        "oracle"
        | "centos"
        | "redhat"
        | "scientific"
        | "enterpriseenterprise"
        | "amazon"
        | "xenserver"
        | "cloudlinux"
        | "ibm_powerkvm"
        | "rocky"
        | "almalinux" => "rhel",
        "suse"
        | "opensuse"
        | "opensuse-leap"
        | "opensuse-tumbleweed"
        | "opensuse-tumbleweed-kubic"
        | "sles"
        | "sled"
        | "caasp" => "suse",
        "gentoo" => "gentoo",
        "slackware" => "slackware",
        "arch" => "arch",
        "exherbo" => "exherbo",
        "alpine" => "alpine",
        "coreos" => "coreos",
        "solus" => "solus",
        "neokylin" => "neokylin",
        "anolis" => "anolis",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_red_hat_version_is_a_word_character_then_digits_and_dots() {
        for (line, version) in [
            ("Rocky Linux release 9.3 (Blue Onyx)", "9.3"),
            ("CentOS Stream release 9", "9"),
            ("Fedora release 42 (Forty Two)", "42"),
            ("Fedora release 43 (Rawhide)", "rawhide"),
            ("Gentoo Base System release 2.14", "2.14"),
            ("the release (old) release 7.9", "7.9"),
            ("no version here", ""),
            ("release ", ""),
            ("release é1", ""),
        ] {
            assert_eq!(redhat_version(line), version, "{line}");
        }
    }

    #[test]
    fn a_red_hat_name_is_the_first_word_or_redhat() {
        for (line, name) in [
            ("Red Hat Enterprise Linux release 9.3 (Plow)", "redhat"),
            ("AlmaLinux release 9.3 (Shamrock Pampas Cat)", "almalinux"),
            ("Amazon Linux release 2 (Karoo)", "amazon"),
        ] {
            assert_eq!(redhat_name(line), name, "{line}");
        }
    }

    #[test]
    fn assigned_values_lose_one_pair_of_quotes() {
        let text = "A=\"x y\"\nB='z'\nC=a=b\nD=\"\nA = last\n";
        assert_eq!(assigned(text, "A"), "last");
        assert_eq!(assigned(text, "B"), "z");
        assert_eq!(assigned(text, "C"), "a=b");
        assert_eq!(assigned(text, "D"), "\"");
        assert_eq!(assigned(text, "E"), "");
    }

    #[test]
    fn families_of_distributions() {
        for (name, expected) in [
            ("ubuntu", "debian"),
            ("fedora", "fedora"),
            ("rocky", "rhel"),
            ("opensuse-leap", "suse"),
            ("alpine", "alpine"),
            ("nixos", ""),
        ] {
            assert_eq!(family(name), expected, "{name}");
        }
    }
}
