//! Parser for requests of `cf-agent`: options and packages as `Key=value` lines.
//!
//! `Name` or `File` starts a package, `Version` and `Architecture` belong to the preceding one. A
//! value extends to the end of the line. Unknown keys and lines without a key are ignored, for
//! compatibility with future versions.

use ccm_core::resource::package::PackageSpec;

/// Request of `cf-agent`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    pub options: Vec<String>,
    pub records: Vec<Record>,
}

/// Package of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// `Name`, or `File` if it is or may be a file.
    pub key: &'static str,
    pub package: PackageSpec,
}

impl Request {
    /// Parses a request; never fails.
    pub(super) fn parse(text: &str) -> Self {
        let mut request = Self::default();
        for line in text.lines() {
            let (key, value) = line.split_once('=').unwrap_or_default();
            match (key, request.records.last_mut()) {
                // The API documentation uses `Option`, cf-agent sends `options`.
                ("options" | "Option", _) if value.is_empty() => {}
                ("options" | "Option", _) => request.options.push(value.into()),
                ("Name", _) => request.records.push(Record::new("Name", value)),
                ("File", _) => request.records.push(Record::new("File", value)),
                ("Version", Some(record)) => record.package.version = value.into(),
                ("Architecture", Some(record)) => record.package.arch = value.into(),
                _ => {}
            }
        }
        request
    }

    /// Returns the packages without their keys.
    pub(super) fn packages(&self) -> Vec<PackageSpec> {
        let package = |record: &Record| record.package.clone();
        self.records.iter().map(package).collect()
    }
}

impl Record {
    fn new(key: &'static str, name: &str) -> Self {
        let package = PackageSpec {
            name: name.into(),
            ..PackageSpec::default()
        };
        Self { key, package }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &'static str, name: &str, version: &str, arch: &str) -> Record {
        let package = PackageSpec {
            name: name.into(),
            version: version.into(),
            arch: arch.into(),
        };
        Record { key, package }
    }

    #[test]
    fn every_name_starts_a_package() {
        let text = "options=-o\noptions=APT::Install-Recommends=0\nName=zip\nName=libc6\n\
                    Version=2.15\nArchitecture=amd64\nName=libc6\nVersion=2.15\nArchitecture=i386\n";
        let request = Request::parse(text);
        assert_eq!(request.options, ["-o", "APT::Install-Recommends=0"]);
        assert_eq!(
            request.records,
            [
                record("Name", "zip", "", ""),
                record("Name", "libc6", "2.15", "amd64"),
                record("Name", "libc6", "2.15", "i386"),
            ]
        );
    }

    #[test]
    fn options_are_accepted_anywhere_and_in_both_spellings() {
        let request = Request::parse("Name=a\nOption=--noplugins\nVersion=1\noptions=\n");
        assert_eq!(request.options, ["--noplugins"]);
        assert_eq!(request.records, [record("Name", "a", "1", "")]);
    }

    #[test]
    fn a_value_is_everything_after_the_first_equals_sign() {
        let request = Request::parse("File=/srv/a =b.deb \r\n");
        assert_eq!(request.records, [record("File", "/srv/a =b.deb ", "", "")]);
    }

    #[test]
    fn unknown_keys_are_ignored() {
        let request = Request::parse("Version=1\n\nzip\nColour=red\nname=a\n=x\n");
        assert_eq!(request, Request::default());
    }
}
