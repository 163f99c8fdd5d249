//! JSON in the exact format of Go's encoder.
//!
//! Consumers compare and hash documents together with those of upstream agents, so the bytes must
//! match: `<`, `>`, `&` and the two Unicode line separators are escaped, and integral floats have
//! no fraction.

use std::io;

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

/// Formats a value as JSON on one line.
pub fn compact<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    write(value, CompactFormatter)
}

/// Formats a value as JSON indented by two spaces, without a final newline.
pub fn pretty<T: Serialize + ?Sized>(value: &T) -> Result<String, serde_json::Error> {
    write(value, PrettyFormatter::new())
}

/// Writes a value as [`pretty`] formats it, part by part.
pub fn write_pretty<T: Serialize + ?Sized>(
    out: &mut impl io::Write,
    value: &T,
) -> Result<(), serde_json::Error> {
    let layout = GoFormatter(PrettyFormatter::new());
    value.serialize(&mut Serializer::with_formatter(out, layout))
}

fn write<T: Serialize + ?Sized>(
    value: &T,
    layout: impl Formatter,
) -> Result<String, serde_json::Error> {
    let mut out = Vec::with_capacity(512);
    value.serialize(&mut Serializer::with_formatter(
        &mut out,
        GoFormatter(layout),
    ))?;
    String::from_utf8(out).map_err(|err| serde::ser::Error::custom(err.to_string()))
}

/// Wraps a formatter and changes only what Go writes differently.
struct GoFormatter<F>(F);

impl<F: Formatter> Formatter for GoFormatter<F> {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            let (plain, special) = rest.split_at(at);
            out.write_all(plain.as_bytes())?;
            let mut chars = special.chars();
            if let Some(found) = chars.next() {
                write!(out, "\\u{:04x}", u32::from(found))?;
            }
            rest = chars.as_str();
        }
        out.write_all(rest.as_bytes())
    }

    fn write_char_escape<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        escape: serde_json::ser::CharEscape,
    ) -> io::Result<()> {
        self.0.write_char_escape(out, escape)
    }

    fn write_f64<W: ?Sized + io::Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        let size = value.abs();
        if size != 0.0 && !(1e-6..1e21).contains(&size) {
            let text = format!("{value:e}");
            // Go prints the sign of a positive exponent: 1e+21, but 1e-7.
            return match text.split_once('e') {
                Some((digits, exponent)) if !exponent.starts_with('-') => {
                    write!(out, "{digits}e+{exponent}")
                }
                _ => out.write_all(text.as_bytes()),
            };
        }
        write!(out, "{value}")
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_array(out)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array(out)
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_array_value(out, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_array_value(out)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object(out)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object(out)
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_object_key(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.begin_object_value(out)
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.0.end_object_value(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angle_brackets_ampersand_and_line_separators_are_escaped() {
        let text = "a<b>&c\u{2028}\u{2029}é\n";
        assert_eq!(
            compact(text).unwrap(),
            r#""a\u003cb\u003e\u0026c\u2028\u2029é\n""#
        );
    }

    #[test]
    fn floats_print_in_plain_decimals_within_the_range_of_go() {
        let list = [5.0, 0.5, 1e20, 1e21, 1e-6, 1e-7, -2.5];
        assert_eq!(
            compact(&list).unwrap(),
            "[5,0.5,100000000000000000000,1e+21,0.000001,1e-7,-2.5]"
        );
    }

    #[test]
    fn a_float_is_the_same_after_being_written_and_read() {
        // Read with less care these are off by one bit.
        for number in [
            31.245270191439438_f64,
            121.48791951161945,
            100.78399658203125,
        ] {
            let text = compact(&number).unwrap();
            let again: f64 = serde_json::from_str(&text).unwrap();
            assert_eq!(again.to_bits(), number.to_bits(), "{text}");
        }
    }

    #[test]
    fn empty_lists_and_maps_stay_on_one_line_when_indented() {
        let doc = serde_json::json!({"a": [], "b": {}});
        assert_eq!(pretty(&doc).unwrap(), "{\n  \"a\": [],\n  \"b\": {}\n}");
    }
}
