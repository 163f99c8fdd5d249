//! The functions that `@validate` expressions may call: is this text an address, a duration, safe
//! in a shell?
//!
//! A function that says no may know why. It answers false all the same, so that `||` can try the
//! next one, and leaves the reason behind; when the whole expression turns out false, the first
//! reason is the error.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use regex::Regex;

use crate::model::Value;
use crate::model::text::{parse_duration, quote};
use ccm_template::env::{Function, Functions};
use ccm_template::expr::{Cache, Expect, ExprError, Extras, Options, Problem, compile_with};
use ccm_template::pattern::short_reason;
use ccm_template::{CallError, Env};

/// What the checks of one expression may cost together, counted in bytes of text looked at.
const MAX_WORK: usize = 256 << 20;

/// What a call costs beside its text, and what a new pattern does.
const CALL_WORK: usize = 1 << 10;
const PATTERN_WORK: usize = 1 << 20;

/// Why an expression does not accept a value, or can't judge it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// What a check said of the value.
    #[error("{0}")]
    Refused(String),
    /// The expression has no result. Who asks has it at hand: there is no need to quote it.
    #[error(transparent)]
    Problem(Problem),
    #[error(transparent)]
    Expression(ExprError),
}

impl From<ExprError> for CheckError {
    fn from(err: ExprError) -> Self {
        match err {
            ExprError::Compile { problem, .. } | ExprError::Run { problem } => {
                Self::Problem(problem)
            }
            other @ (ExprError::Unclosed | ExprError::Hidden) => Self::Expression(other),
        }
    }
}

/// Returns whether an expression accepts a text, which it knows as `value` and `Value`.
pub fn check_value(value: &str, expression: &str) -> Result<bool, CheckError> {
    let notes = Arc::<Mutex<Notes>>::default();
    let extras = Extras {
        variables: ["value", "Value"].map(|name| (name, value.into())).into(),
        functions: functions(&notes),
    };
    let options = Options {
        expect: Expect::Bool,
        restricted: true,
        isolated: true,
        extras: Some(&extras),
    };
    let program = compile_with(expression, options)?;
    let accepted = program.run_with(&Env::default(), Some(&extras), &Cache::default())?;
    let reason = lock(&notes).reason.take();
    match (accepted == Value::Bool(true), reason) {
        (true, _) => Ok(true),
        (false, None) => Ok(false),
        (false, Some(reason)) => Err(CheckError::Refused(reason)),
    }
}

/// What a check says of a text.
enum Verdict {
    Yes,
    No,
    Because(String),
}

impl From<bool> for Verdict {
    fn from(fits: bool) -> Self {
        if fits { Self::Yes } else { Self::No }
    }
}

type Check = fn(&str) -> Verdict;

const CHECKS: [(&str, &str, Check); 9] = [
    ("isIP", "is_ip", |text| address(text, "IP", |_| true)),
    ("isIPv4", "is_ipv4", |text| {
        address(text, "IPv4", |ip| ip.is_ipv4())
    }),
    ("isIPv6", "is_ipv6", |text| {
        address(text, "IPv6", |ip| ip.is_ipv6())
    }),
    ("isInt", "is_int", |text| is_int(text).into()),
    ("isFloat", "is_float", |text| is_float(text).into()),
    ("isDuration", "is_duration", |text| {
        parse_duration(text).is_ok().into()
    }),
    ("isShellSafe", "is_shellsafe", shell_safe),
    ("isHostname", "is_hostname", |text| {
        named(text, "hostname", is_hostname(text))
    }),
    ("isFQDN", "is_fqdn", |text| {
        named(text, "FQDN", is_fqdn(text))
    }),
];

/// What the calls of one expression leave behind.
struct Notes {
    /// Why the first check that could tell said no.
    reason: Option<String>,
    patterns: HashMap<String, Regex>,
    work: usize,
}

impl Default for Notes {
    fn default() -> Self {
        Self {
            reason: None,
            patterns: HashMap::new(),
            work: MAX_WORK,
        }
    }
}

impl Notes {
    fn spend(&mut self, work: usize) -> Result<(), CallError> {
        let left = self.work.checked_sub(work);
        self.work = left.ok_or("the validation takes too much work")?;
        Ok(())
    }

    fn note(&mut self, verdict: Verdict) -> Value {
        match verdict {
            Verdict::Yes => true.into(),
            Verdict::No => false.into(),
            Verdict::Because(reason) => {
                self.reason.get_or_insert(reason);
                false.into()
            }
        }
    }

    fn matches(&mut self, text: &str, pattern: &str) -> Result<bool, CallError> {
        if let Some(compiled) = self.patterns.get(pattern) {
            return Ok(compiled.is_match(text));
        }
        self.spend(PATTERN_WORK)?;
        let compiled = Regex::new(pattern).map_err(|err| {
            let reason = short_reason(&err);
            CallError::new(err).reword(|_| format!("invalid regex {}: {reason}", quote(pattern)))
        })?;
        let fits = compiled.is_match(text);
        self.patterns.insert(pattern.into(), compiled);
        Ok(fits)
    }
}

fn lock(notes: &Mutex<Notes>) -> MutexGuard<'_, Notes> {
    notes.lock()
}

/// Returns the checks as functions of expressions, each under both of its names.
fn functions(notes: &Arc<Mutex<Notes>>) -> Functions {
    let mut functions = Functions::new();
    for (camel, snake, check) in CHECKS {
        for name in [camel, snake] {
            let notes = Arc::clone(notes);
            let function: Function = Arc::new(move |args| {
                let [text] = texts(name, args)?;
                let mut notes = lock(&notes);
                notes.spend(CALL_WORK + text.len())?;
                Ok(notes.note(check(text)))
            });
            functions.insert(name, function);
        }
    }
    for name in ["isRegex", "is_regex"] {
        let notes = Arc::clone(notes);
        let function: Function = Arc::new(move |args| {
            let [text, pattern] = texts(name, args)?;
            let mut notes = lock(&notes);
            notes.spend(CALL_WORK + text.len() + pattern.len())?;
            notes.matches(text, pattern).map(Value::Bool)
        });
        functions.insert(name, function);
    }
    functions
}

/// Returns the arguments of a call, which must be so many texts.
fn texts<'a, const N: usize>(name: &str, args: &'a [Value]) -> Result<[&'a str; N], CallError> {
    let args: &[Value; N] = args.try_into().map_err(|_| {
        let amount = if args.len() > N {
            "too many"
        } else {
            "not enough"
        };
        format!("{amount} arguments to call {name}")
    })?;
    let mut texts = [""; N];
    for (text, arg) in texts.iter_mut().zip(args) {
        *text = arg.as_str().ok_or_else(|| {
            let kind = arg.kind();
            format!("cannot use {kind} as argument (type string) to call {name}")
        })?;
    }
    Ok(texts)
}

/// An IPv4 address written as IPv6 counts as IPv4.
fn address(text: &str, kind: &str, fits: fn(IpAddr) -> bool) -> Verdict {
    match text.parse::<IpAddr>() {
        Ok(ip) if fits(ip.to_canonical()) => Verdict::Yes,
        _ => Verdict::Because(format!("{text} is not an {kind} address")),
    }
}

fn is_int(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    match text.parse::<f64>() {
        // Too large a number is none; infinity must be spelled out.
        Ok(number) if number.is_infinite() => unsigned.starts_with(['i', 'I']),
        Ok(number) if number.is_nan() => unsigned == text,
        parsed => parsed.is_ok(),
    }
}

/// Text that a shell takes for text; blanks around it do not count.
fn shell_safe(text: &str) -> Verdict {
    let text = text.trim();
    let unsafe_chars = ['`', '$', ';', '|', '&', '>', '<', '(', ')', '\n'];
    match unsafe_chars.into_iter().find(|c| text.contains(*c)) {
        None => Verdict::Yes,
        Some(found) => Verdict::Because(format!("may not contain '{found}'")),
    }
}

fn named(text: &str, what: &str, fits: bool) -> Verdict {
    if fits {
        Verdict::Yes
    } else {
        Verdict::Because(format!("{} is not a valid {what}", quote(text)))
    }
}

/// One or more labels of RFC 1123, with dots between them.
fn is_hostname(text: &str) -> bool {
    text.split('.').all(|label| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    })
}

/// A hostname below a domain, whose last label is no number; a final dot is welcome.
fn is_fqdn(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);
    let last = name.rsplit_once('.').map(|(_, last)| last);
    last.is_some_and(|last| last.starts_with(|c: char| c.is_ascii_alphabetic()))
        && is_hostname(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(value: &str, code: &str) -> bool {
        check_value(value, code) == Ok(true)
    }

    fn error(value: &str, code: &str) -> String {
        check_value(value, code).unwrap_err().to_string()
    }

    #[test]
    fn addresses_are_those_of_go() {
        for (text, code) in [
            ("192.0.2.1", "isIPv4(value)"),
            ("::ffff:192.0.2.1", "is_ipv4(value)"),
            ("2001:db8::1", "isIPv6(value)"),
            ("::", "is_ip(value)"),
        ] {
            assert!(accepts(text, code), "{text} {code}");
        }
        for (text, code) in [
            ("192.0.2.01", "isIP(value)"),
            ("fe80::1%eth0", "isIP(value)"),
            ("::ffff:192.0.2.1", "isIPv6(value)"),
            ("", "isIP(value)"),
        ] {
            assert!(!accepts(text, code), "{text} {code}");
        }
    }

    #[test]
    fn a_refusal_gives_its_reason_only_if_the_whole_is_false() {
        assert!(accepts("2001:db8::1", "isIPv4(value) || isIPv6(value)"));
        assert!(accepts("bob", "!isIP(value)"));
        assert_eq!(
            error("bob", "isIPv4(value) || isIPv6(value)"),
            "bob is not an IPv4 address"
        );
        assert_eq!(check_value("1.2.3.4", "!isIP(value)"), Ok(false));
    }

    #[test]
    fn integers_have_any_size_and_floats_have_not() {
        for text in ["0", "-42", "+7", "123456789012345678901234567890"] {
            assert!(accepts(text, "isInt(value)"), "{text}");
        }
        for text in ["", "-", "1.5", "1e3", "0x1", " 1"] {
            assert_eq!(check_value(text, "is_int(value)"), Ok(false), "{text}");
        }
        for text in ["1", ".5", "1.", "-1e-3", "Inf", "-infinity", "NaN"] {
            assert!(accepts(text, "isFloat(value)"), "{text}");
        }
        for text in ["", ".", "1e999", "-NaN", "x", " 1"] {
            assert_eq!(check_value(text, "is_float(value)"), Ok(false), "{text}");
        }
    }

    #[test]
    fn durations_are_those_of_properties() {
        for text in ["0", "1d", "1h30m", "2w", "1.5s"] {
            assert!(accepts(text, "isDuration(value)"), "{text}");
        }
        assert_eq!(check_value("bob", "is_duration(value)"), Ok(false));
    }

    #[test]
    fn names_of_hosts_follow_rfc_1123() {
        let long = "a".repeat(64);
        for text in ["a", "web-1.example.net", "1.2.3.4", &long[1..]] {
            assert!(accepts(text, "isHostname(value)"), "{text}");
        }
        for text in ["", "-a", "a-", "a..b", "a.", "é", &long] {
            assert!(!accepts(text, "is_hostname(value)"), "{text}");
        }
        for text in ["a.b", "web1.example.net."] {
            assert!(accepts(text, "isFQDN(value)"), "{text}");
        }
        for text in ["a", "a.", "1.2.3.4", "a.b..", ".b"] {
            assert!(!accepts(text, "is_fqdn(value)"), "{text}");
        }
    }

    #[test]
    fn text_is_safe_in_a_shell_without_its_special_characters() {
        assert!(accepts(" ok ok \n", "isShellSafe(value)"));
        assert_eq!(error("a>$b", "isShellSafe(value)"), "may not contain '$'");
    }

    #[test]
    fn a_bad_pattern_is_an_error_even_when_another_check_says_yes() {
        assert!(accepts("abc", "isRegex(value, 'b')"));
        assert!(error("x", "isRegex(value, '[') || true").starts_with("invalid regex \"[\""));
    }

    #[test]
    fn a_wrong_call_is_an_error() {
        assert!(error("x", "isInt()").starts_with("not enough arguments to call isInt"));
        assert!(error("x", "isInt(1)").starts_with("cannot use integer as argument"));
        assert!(error("x", "nope(value)").starts_with("unknown name nope"));
        assert!(error("x", "lookup('facts.a') == ''").starts_with("unknown name lookup"));
        assert!(error("x", "len(value)").starts_with("expected bool, but got int"));
    }

    #[test]
    fn too_many_patterns_are_too_much_work() {
        let code = "all(1..100000, isRegex(value, string(#)) || true)";
        assert!(error("x", code).starts_with("the validation takes too much work"));
    }
}
