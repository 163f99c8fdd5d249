//! Go's `Sprintf`: verbs, flags, width, precision, `*` and `[n]`.
//!
//! A verb that does not fit its value prints `%!d(string=x)` instead of failing, as in Go.

use super::datum::Datum;
use super::limits::Meter;
use crate::CallError;
use ccm_value::quote::{quote, quote_ascii, quote_char};
use ccm_value::value::go_float;

/// Maximum width and precision, as in Go.
const MAX_WIDTH: usize = 1_000_000;

/// Formats arguments.
pub(super) fn format(layout: &str, args: &[Datum], meter: &Meter) -> Result<String, CallError> {
    let mut printer = Printer {
        args,
        next: 0,
        reordered: false,
        meter,
        out: String::new(),
    };
    printer.run(layout)?;
    Ok(printer.out)
}

#[derive(Clone, Copy, Default)]
struct Spec {
    plus: bool,
    minus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

struct Printer<'a> {
    args: &'a [Datum],
    next: usize,
    reordered: bool,
    meter: &'a Meter,
    out: String,
}

impl Printer<'_> {
    fn run(&mut self, layout: &str) -> Result<(), CallError> {
        let mut rest = layout;
        while let Some((plain, after)) = rest.split_once('%') {
            self.meter.spend(plain.len())?;
            self.out.push_str(plain);
            rest = self.directive(after)?;
        }
        self.meter.spend(rest.len())?;
        self.out.push_str(rest);
        if !self.reordered && self.next < self.args.len() {
            self.out.push_str("%!(EXTRA ");
            for (index, arg) in self.args.iter().enumerate().skip(self.next) {
                if index > self.next {
                    self.out.push_str(", ");
                }
                self.write_type_and_value(arg)?;
            }
            self.out.push(')');
        }
        Ok(())
    }

    /// Parses one directive after its `%` and prints it; returns the rest of the layout.
    fn directive<'l>(&mut self, layout: &'l str) -> Result<&'l str, CallError> {
        let mut spec = Spec::default();
        let mut rest = layout;
        while let Some(flag) = rest.chars().next() {
            match flag {
                '+' => spec.plus = true,
                '-' => spec.minus = true,
                '#' => spec.sharp = true,
                ' ' => spec.space = true,
                '0' => spec.zero = true,
                _ => break,
            }
            rest = rest.get(1..).unwrap_or("");
        }
        let mut good_index = true;
        rest = self.argument_number(rest, &mut good_index);
        if let Some(after) = rest.strip_prefix('*') {
            rest = after;
            match self.star() {
                Some(width) => {
                    spec.minus |= width < 0;
                    spec.width = usize::try_from(width.unsigned_abs()).unwrap_or(MAX_WIDTH);
                }
                None => self.out.push_str("%!(BADWIDTH)"),
            }
        } else {
            let (width, after) = digits(rest);
            spec.width = width.unwrap_or(0);
            rest = after;
        }
        if let Some(after) = rest.strip_prefix('.') {
            rest = self.argument_number(after, &mut good_index);
            if let Some(after) = rest.strip_prefix('*') {
                rest = after;
                match self.star() {
                    // A negative precision means none.
                    Some(precision) => spec.precision = usize::try_from(precision).ok(),
                    None => self.out.push_str("%!(BADPREC)"),
                }
            } else {
                let (precision, after) = digits(rest);
                spec.precision = Some(precision.unwrap_or(0));
                rest = after;
            }
        }
        rest = self.argument_number(rest, &mut good_index);
        let mut chars = rest.chars();
        let Some(verb) = chars.next() else {
            self.out.push_str("%!(NOVERB)");
            return Ok("");
        };
        let rest = chars.as_str();
        if verb == '%' {
            self.out.push('%');
            return Ok(rest);
        }
        if !good_index {
            self.write_error(verb, "BADINDEX");
            return Ok(rest);
        }
        let Some(arg) = self.args.get(self.next) else {
            self.write_error(verb, "MISSING");
            return Ok(rest);
        };
        self.next += 1;
        if verb == 'v' {
            // With `%v` the flag adds field names, which these values do not have.
            spec.plus = false;
        }
        self.value(spec, verb, arg, 0)?;
        Ok(rest)
    }

    fn write_error(&mut self, verb: char, what: &str) {
        self.out.push_str("%!");
        self.out.push(verb);
        self.out.push('(');
        self.out.push_str(what);
        self.out.push(')');
    }

    /// Parses `[n]`, which selects the next argument.
    fn argument_number<'l>(&mut self, rest: &'l str, good: &mut bool) -> &'l str {
        let Some((inside, after)) = rest.strip_prefix('[').and_then(|s| s.split_once(']')) else {
            return rest;
        };
        self.reordered = true;
        match inside.parse::<usize>().ok().and_then(|n| n.checked_sub(1)) {
            Some(index) if index < self.args.len() => self.next = index,
            _ => *good = false,
        }
        after
    }

    fn star(&mut self) -> Option<i64> {
        let arg = self.args.get(self.next)?;
        self.next += 1;
        match arg {
            Datum::Int(value) | Datum::Int64(value) if value.unsigned_abs() <= MAX_WIDTH as u64 => {
                Some(*value)
            }
            _ => None,
        }
    }

    fn value(
        &mut self,
        spec: Spec,
        verb: char,
        arg: &Datum,
        level: usize,
    ) -> Result<(), CallError> {
        self.meter.step()?;
        // Same nesting limit as `print`.
        if level > 100 {
            return Err("value is nested deeper than 100 levels".into());
        }
        match (arg, verb) {
            (_, 'T') => self.pad(spec, &arg.type_name()),
            (Datum::Nil, 'v') => self.pad(
                spec,
                if spec.sharp {
                    "interface {}(nil)"
                } else {
                    "<nil>"
                },
            ),
            (Datum::Nil, _) => {
                self.write_error(verb, "<nil>");
                Ok(())
            }
            (Datum::Bool(value), 'v' | 't') => {
                self.pad(spec, if *value { "true" } else { "false" })
            }
            (Datum::Int(value) | Datum::Int64(value), _) => {
                self.integer(spec, verb, arg, (*value).into())
            }
            (Datum::Uint(value), _) => self.integer(spec, verb, arg, (*value).into()),
            (Datum::Float(value), _) => self.float(spec, verb, arg, *value),
            (Datum::Str(text), _) => self.text(spec, verb, arg, text),
            (Datum::Time(time), 'v' | 's' | 'q' | 'x' | 'X') => {
                self.text(spec, verb, arg, &time.to_string())
            }
            (Datum::Version(version), 'v' | 's' | 'q' | 'x' | 'X') => {
                self.text(spec, verb, arg, &version.to_string())
            }
            (Datum::List(list), _) => {
                let syntax = spec.sharp && verb == 'v';
                let (open, between, close) = brackets(syntax, "[", "]");
                if syntax {
                    self.out.push_str(&arg.type_name());
                }
                self.out.push_str(open);
                for (index, item) in list.items.iter().enumerate() {
                    if index > 0 {
                        self.out.push_str(between);
                    }
                    self.value(spec, verb, item, level + 1)?;
                }
                self.out.push_str(close);
                Ok(())
            }
            (Datum::Dict(dict), _) => {
                let syntax = spec.sharp && verb == 'v';
                let (open, between, close) = brackets(syntax, "map[", "]");
                if syntax {
                    self.out.push_str(&arg.type_name());
                }
                self.out.push_str(open);
                for (index, (key, item)) in dict.entries.borrow().iter().enumerate() {
                    if index > 0 {
                        self.out.push_str(between);
                    }
                    self.value(spec, verb, &Datum::Str(key.clone()), level + 1)?;
                    self.out.push(':');
                    self.value(spec, verb, item, level + 1)?;
                }
                self.out.push_str(close);
                Ok(())
            }
            _ => self.bad_verb(verb, arg),
        }
    }

    /// Prints the error form of a value that does not fit its verb.
    fn bad_verb(&mut self, verb: char, arg: &Datum) -> Result<(), CallError> {
        self.out.push_str("%!");
        self.out.push(verb);
        self.out.push('(');
        self.write_type_and_value(arg)?;
        self.out.push(')');
        Ok(())
    }

    fn write_type_and_value(&mut self, arg: &Datum) -> Result<(), CallError> {
        if !matches!(arg, Datum::Nil) {
            self.out.push_str(&arg.type_name());
            self.out.push('=');
        }
        arg.print(&mut self.out, self.meter)
    }

    /// Writes text padded to the width.
    fn pad(&mut self, spec: Spec, text: &str) -> Result<(), CallError> {
        let missing = spec.width.saturating_sub(text.chars().count());
        self.meter.spend(text.len().saturating_add(missing))?;
        let filler = if spec.zero && !spec.minus { "0" } else { " " };
        if spec.minus {
            self.out.push_str(text);
            self.out.push_str(&" ".repeat(missing));
        } else {
            self.out.push_str(&filler.repeat(missing));
            self.out.push_str(text);
        }
        Ok(())
    }

    fn text(&mut self, spec: Spec, verb: char, arg: &Datum, text: &str) -> Result<(), CallError> {
        let cut: String;
        let text = match spec.precision {
            Some(precision) => {
                cut = text.chars().take(precision).collect();
                &cut
            }
            None => text,
        };
        self.meter.spend(text.len().saturating_mul(4))?;
        match verb {
            'v' if spec.sharp => self.pad(spec, &quote(text)),
            'v' | 's' => self.pad(spec, text),
            'q' if spec.sharp && !text.contains(['`', '\n', '\r']) => {
                self.pad(spec, &format!("`{text}`"))
            }
            'q' if spec.plus => self.pad(spec, &quote_ascii(text)),
            'q' => self.pad(spec, &quote(text)),
            'x' | 'X' => {
                let mut hex = String::new();
                for byte in text.bytes() {
                    if spec.space && !hex.is_empty() {
                        hex.push(' ');
                    }
                    if spec.sharp && (spec.space || hex.is_empty()) {
                        hex.push_str("0x");
                    }
                    hex.push_str(&format!("{byte:02x}"));
                }
                if verb == 'X' {
                    hex.make_ascii_uppercase();
                }
                self.pad(spec, &hex)
            }
            _ => self.bad_verb(verb, arg),
        }
    }

    fn integer(
        &mut self,
        spec: Spec,
        verb: char,
        arg: &Datum,
        value: i128,
    ) -> Result<(), CallError> {
        let size = value.unsigned_abs();
        let character = u32::try_from(size)
            .ok()
            .and_then(char::from_u32)
            .unwrap_or('\u{fffd}');
        let digits = match verb {
            'v' | 'd' => size.to_string(),
            'b' => format!("{size:b}"),
            'o' | 'O' => format!("{size:o}"),
            'x' => format!("{size:x}"),
            'X' => format!("{size:X}"),
            'c' => return self.pad(spec, character.encode_utf8(&mut [0; 4])),
            'q' => return self.pad(spec, &quote_char(character, spec.plus)),
            'U' => {
                return self.pad(
                    Spec {
                        zero: false,
                        ..spec
                    },
                    &format!("U+{size:04X}"),
                );
            }
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' | 's' | 't' => return self.bad_verb(verb, arg),
            _ => return self.bad_verb(verb, arg),
        };
        let sign = sign(spec, value < 0);
        // An explicit precision is the number of digits; otherwise the zero flag pads to the width.
        let least = match spec.precision {
            Some(0) if size == 0 => {
                return self.pad(
                    Spec {
                        zero: false,
                        ..spec
                    },
                    "",
                );
            }
            Some(precision) => precision,
            None if spec.zero && !spec.minus => spec.width.saturating_sub(sign.len()),
            None => 0,
        };
        self.meter.spend(least)?;
        let zeros = "0".repeat(least.saturating_sub(digits.len()));
        let prefix = match verb {
            'b' if spec.sharp => "0b",
            'o' if spec.sharp && !zeros.starts_with('0') && !digits.starts_with('0') => "0",
            'O' => "0o",
            'x' if spec.sharp => "0x",
            'X' if spec.sharp => "0X",
            _ => "",
        };
        let text = format!("{sign}{prefix}{zeros}{digits}");
        self.pad(
            Spec {
                zero: false,
                ..spec
            },
            &text,
        )
    }

    fn float(&mut self, spec: Spec, verb: char, arg: &Datum, value: f64) -> Result<(), CallError> {
        let size = value.abs();
        self.meter
            .spend(spec.precision.unwrap_or(0).saturating_add(400))?;
        let body = if value.is_finite() {
            match verb {
                'v' | 'g' | 'G' => match spec.precision {
                    Some(precision) => general(size, precision),
                    None => go_float(size),
                },
                'f' | 'F' => format!("{size:.*}", spec.precision.unwrap_or(6)),
                'e' | 'E' => exponential(size, spec.precision.unwrap_or(6)),
                _ => return self.bad_verb(verb, arg),
            }
        } else if "vgGfFeE".contains(verb) {
            if value.is_nan() { "NaN" } else { "Inf" }.into()
        } else {
            return self.bad_verb(verb, arg);
        };
        let body = if matches!(verb, 'E' | 'G') {
            body.to_uppercase()
        } else {
            body
        };
        let sign = match sign(spec, value.is_sign_negative() && !value.is_nan()) {
            // Go always prints the sign of an infinity.
            "" if value.is_infinite() => "+",
            sign => sign,
        };
        let zeros = if spec.zero && !spec.minus && value.is_finite() {
            spec.width.saturating_sub(sign.len() + body.len())
        } else {
            0
        };
        self.meter.spend(zeros)?;
        let text = format!("{sign}{}{body}", "0".repeat(zeros));
        self.pad(
            Spec {
                zero: false,
                ..spec
            },
            &text,
        )
    }
}

fn brackets<'a>(syntax: bool, open: &'a str, close: &'a str) -> (&'a str, &'a str, &'a str) {
    if syntax {
        ("{", ", ", "}")
    } else {
        (open, " ", close)
    }
}

fn sign(spec: Spec, negative: bool) -> &'static str {
    match (negative, spec.plus, spec.space) {
        (true, ..) => "-",
        (false, true, _) => "+",
        (false, false, true) => " ",
        _ => "",
    }
}

/// Parses a decimal number, limited to [`MAX_WIDTH`].
fn digits(text: &str) -> (Option<usize>, &str) {
    let len = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at(len);
    if digits.is_empty() {
        return (None, rest);
    }
    (
        Some(digits.parse().unwrap_or(MAX_WIDTH).min(MAX_WIDTH)),
        rest,
    )
}

/// Formats as `%e`: the exponent has a sign and at least two digits.
fn exponential(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let number: i32 = exponent.parse().unwrap_or(0);
            let sign = if number < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", number.abs())
        }
        None => text,
    }
}

/// Formats as `%g` with a precision: that many digits, trailing zeros dropped.
fn general(value: f64, precision: usize) -> String {
    let precision = precision.max(1);
    let scientific = format!("{value:.*e}", precision - 1);
    let exponent: i32 = scientific
        .split_once('e')
        .and_then(|(_, exponent)| exponent.parse().ok())
        .unwrap_or(0);
    let trim = |text: &str| {
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text.to_owned()
        }
    };
    let most = i32::try_from(precision).unwrap_or(i32::MAX);
    if exponent < -4 || exponent >= most {
        let text = exponential(value, precision - 1);
        return match text.split_once('e') {
            Some((digits, exponent)) => format!("{}e{exponent}", trim(digits)),
            None => text,
        };
    }
    let decimals = usize::try_from(most - 1 - exponent).unwrap_or(0);
    trim(&format!("{value:.decimals$}"))
}
