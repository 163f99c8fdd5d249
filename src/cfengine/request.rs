//! What the agent asks: options, then packages, as `Key=value` lines.
//!
//! `Name` or `File` begins a package, `Version` and `Architecture` belong to the one before them.
//! A value goes to the end of its line. Keys that nobody knows are passed over, as are lines
//! without a key: the agent may learn new words.

use ccm_core::resource::package::Wish;

/// One request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    pub options: Vec<String>,
    pub records: Vec<Record>,
}

/// A package as the agent named it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// `Name`, or `File` where it is a file or may be one.
    pub key: &'static str,
    pub wish: Wish,
}

impl Request {
    /// Reads a request. There is none that could not be read.
    pub(super) fn parse(text: &str) -> Self {
        let mut request = Self::default();
        for line in text.lines() {
            let (key, value) = line.split_once('=').unwrap_or_default();
            match (key, request.records.last_mut()) {
                // The published examples of the API say `Option`, the agent says `options`.
                ("options" | "Option", _) if value.is_empty() => {}
                ("options" | "Option", _) => request.options.push(value.into()),
                ("Name", _) => request.records.push(Record::new("Name", value)),
                ("File", _) => request.records.push(Record::new("File", value)),
                ("Version", Some(record)) => record.wish.version = value.into(),
                ("Architecture", Some(record)) => record.wish.arch = value.into(),
                _ => {}
            }
        }
        request
    }

    /// Returns the packages alone.
    pub(super) fn wishes(&self) -> Vec<Wish> {
        let wish = |record: &Record| record.wish.clone();
        self.records.iter().map(wish).collect()
    }
}

impl Record {
    fn new(key: &'static str, name: &str) -> Self {
        let wish = Wish {
            name: name.into(),
            ..Wish::default()
        };
        Self { key, wish }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &'static str, name: &str, version: &str, arch: &str) -> Record {
        let wish = Wish {
            name: name.into(),
            version: version.into(),
            arch: arch.into(),
        };
        Record { key, wish }
    }

    #[test]
    fn every_name_begins_a_package() {
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
    fn options_count_wherever_they_stand_and_however_they_are_spelled() {
        let request = Request::parse("Name=a\nOption=--noplugins\nVersion=1\noptions=\n");
        assert_eq!(request.options, ["--noplugins"]);
        assert_eq!(request.records, [record("Name", "a", "1", "")]);
    }

    #[test]
    fn a_value_is_all_that_stands_behind_the_first_equals_sign() {
        let request = Request::parse("File=/srv/a =b.deb \r\n");
        assert_eq!(request.records, [record("File", "/srv/a =b.deb ", "", "")]);
    }

    #[test]
    fn what_nobody_knows_is_passed_over() {
        let request = Request::parse("Version=1\n\nzip\nColour=red\nname=a\n=x\n");
        assert_eq!(request, Request::default());
    }
}
