//! Functions of `@validate` expressions: checks for addresses, durations, shell-safe text and others.
//!
//! A failed check returns false, so that `||` can try the next one, and records its reason. If the
//! whole expression is false, the first recorded reason is the error.

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

/// Maximum cost of the checks of one expression, in bytes of checked text.
const MAX_WORK: usize = 256 << 20;

/// Costs of a call in addition to its text, and of compiling a pattern.
const CALL_WORK: usize = 1 << 10;
const PATTERN_WORK: usize = 1 << 20;

/// Error of a validation expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// A check failed with this reason.
    #[error("{0}")]
    Invalid(String),
    /// The expression can't be compiled or evaluated. Does not quote the expression: the caller does.
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
            other @ (ExprError::Unclosed | ExprError::Hidden | ExprError::ShowsSecret) => {
                Self::Expression(other)
            }
        }
    }
}

/// Evaluates an expression for a value, which is its variable `value` and `Value`: as text and, if that
/// can't be evaluated, as the number or boolean that it is, so that `value > 0` works.
pub fn check_value(value: &Value, expression: &str) -> Result<bool, CheckError> {
    let text: Value = value.to_string().into();
    match check(&text, expression) {
        Err(CheckError::Problem(problem)) if text != *value => match check(value, expression) {
            Err(CheckError::Problem(_)) => Err(CheckError::Problem(problem)),
            checked => checked,
        },
        checked => checked,
    }
}

fn check(value: &Value, expression: &str) -> Result<bool, CheckError> {
    let state = Arc::<Mutex<CallState>>::default();
    let extras = Extras {
        variables: ["value", "Value"].map(|name| (name, value.clone())).into(),
        functions: functions(&state, value),
    };
    let options = Options {
        expect: Expect::Bool,
        restricted: true,
        isolated: true,
        extras: Some(&extras),
    };
    let program = compile_with(expression, options)?;
    let accepted = program.run_with(&Env::default(), Some(&extras), &Cache::default())?;
    let reason = lock(&state).reason.take();
    match (accepted == Value::Bool(true), reason) {
        (true, _) => Ok(true),
        (false, None) => Ok(false),
        (false, Some(reason)) => Err(CheckError::Invalid(reason)),
    }
}

/// Result of a check.
enum CheckResult {
    Yes,
    No,
    Because(String),
}

impl From<bool> for CheckResult {
    fn from(fits: bool) -> Self {
        if fits { Self::Yes } else { Self::No }
    }
}

type Check = fn(&str) -> CheckResult;

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

/// State shared by the calls of one expression.
struct CallState {
    /// Reason of the first failed check with a reason.
    reason: Option<String>,
    patterns: HashMap<String, Regex>,
    work: usize,
}

impl Default for CallState {
    fn default() -> Self {
        Self {
            reason: None,
            patterns: HashMap::new(),
            work: MAX_WORK,
        }
    }
}

impl CallState {
    fn spend(&mut self, work: usize) -> Result<(), CallError> {
        let left = self.work.checked_sub(work);
        self.work = left.ok_or("the validation takes too much work")?;
        Ok(())
    }

    fn record(&mut self, result: CheckResult) -> Value {
        match result {
            CheckResult::Yes => true.into(),
            CheckResult::No => false.into(),
            CheckResult::Because(reason) => {
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

fn lock(state: &Mutex<CallState>) -> MutexGuard<'_, CallState> {
    state.lock()
}

/// Returns the functions of expressions, each under both of its names. Their arguments are texts, or the
/// value itself.
fn functions(state: &Arc<Mutex<CallState>>, value: &Value) -> Functions {
    let mut functions = Functions::new();
    let value = (value.as_str().is_none()).then(|| (value.clone(), value.to_string()));
    for (camel, snake, check) in CHECKS {
        for name in [camel, snake] {
            let (state, value) = (Arc::clone(state), value.clone());
            let function: Function = Arc::new(move |args| {
                let [text] = texts(name, args, value.as_ref())?;
                let mut state = lock(&state);
                state.spend(CALL_WORK + text.len())?;
                Ok(state.record(check(text)))
            });
            functions.insert(name, function);
        }
    }
    for name in ["isRegex", "is_regex"] {
        let (state, value) = (Arc::clone(state), value.clone());
        let function: Function = Arc::new(move |args| {
            let [text, pattern] = texts(name, args, value.as_ref())?;
            let mut state = lock(&state);
            state.spend(CALL_WORK + text.len() + pattern.len())?;
            state.matches(text, pattern).map(Value::Bool)
        });
        functions.insert(name, function);
    }
    functions
}

/// Returns the arguments of a call, which must be `N` texts. The value itself may be a number or
/// boolean; it is given with its text.
fn texts<'a, const N: usize>(
    name: &str,
    args: &'a [Value],
    value: Option<&'a (Value, String)>,
) -> Result<[&'a str; N], CallError> {
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
        let of_value = value.filter(|(value, _)| value == arg);
        let of_value = of_value.map(|(_, text)| text.as_str());
        *text = arg.as_str().or(of_value).ok_or_else(|| {
            let kind = arg.kind();
            format!("cannot use {kind} as argument (type string) to call {name}")
        })?;
    }
    Ok(texts)
}

/// Checks an IP address; an IPv4-mapped IPv6 address is IPv4.
fn address(text: &str, kind: &str, fits: fn(IpAddr) -> bool) -> CheckResult {
    match text.parse::<IpAddr>() {
        Ok(ip) if fits(ip.to_canonical()) => CheckResult::Yes,
        _ => CheckResult::Because(format!("{text} is not an {kind} address")),
    }
}

fn is_int(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    match text.parse::<f64>() {
        // A number that overflows is invalid; infinity must be written as such.
        Ok(number) if number.is_infinite() => unsigned.starts_with(['i', 'I']),
        Ok(number) if number.is_nan() => unsigned == text,
        parsed => parsed.is_ok(),
    }
}

/// Checks that a text, trimmed, has no shell metacharacters.
fn shell_safe(text: &str) -> CheckResult {
    let text = text.trim();
    let unsafe_chars = ['`', '$', ';', '|', '&', '>', '<', '(', ')', '\n'];
    match unsafe_chars.into_iter().find(|c| text.contains(*c)) {
        None => CheckResult::Yes,
        Some(found) => CheckResult::Because(format!("may not contain '{found}'")),
    }
}

fn named(text: &str, what: &str, fits: bool) -> CheckResult {
    if fits {
        CheckResult::Yes
    } else {
        CheckResult::Because(format!("{} is not a valid {what}", quote(text)))
    }
}

/// Reports whether a text is a hostname: RFC 1123 labels, separated by dots.
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

/// Reports whether a text is a hostname with a domain whose last label starts with a letter; a final
/// dot is allowed.
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
        check_value(&value.into(), code) == Ok(true)
    }

    fn error(value: &str, code: &str) -> String {
        check_value(&value.into(), code).unwrap_err().to_string()
    }

    #[test]
    fn a_number_or_boolean_is_a_text_unless_the_expression_needs_it_as_it_is() {
        let number = Value::Int(8080);
        for code in [
            "value == '8080'",
            "isInt(value) && value > 0",
            "value >= 1024 && value < 65536",
            "value == 8080",
            "isRegex(value, '^80') && Value % 2 == 0",
        ] {
            assert_eq!(check_value(&number, code), Ok(true), "{code}");
        }
        for code in ["isInt(value) && value > 9000", "value < 0"] {
            assert_eq!(check_value(&number, code), Ok(false), "{code}");
        }
        assert_eq!(check_value(&Value::Float(0.5), "value < 1"), Ok(true));
        assert_eq!(check_value(&Value::Bool(true), "value && true"), Ok(true));
        let reason = check_value(&number, "isIPv4(value) && value > 0").unwrap_err();
        assert_eq!(reason.to_string(), "8080 is not an IPv4 address");
        let reason = check_value(&number, "value > nope").unwrap_err();
        assert!(
            reason.to_string().starts_with("unknown name nope"),
            "{reason}"
        );
    }

    #[test]
    fn addresses_are_parsed_as_in_go() {
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
    fn a_reason_is_reported_only_if_the_whole_expression_is_false() {
        assert!(accepts("2001:db8::1", "isIPv4(value) || isIPv6(value)"));
        assert!(accepts("bob", "!isIP(value)"));
        assert_eq!(
            error("bob", "isIPv4(value) || isIPv6(value)"),
            "bob is not an IPv4 address"
        );
        assert_eq!(check_value(&"1.2.3.4".into(), "!isIP(value)"), Ok(false));
    }

    #[test]
    fn integers_have_any_size_but_floats_do_not() {
        for text in ["0", "-42", "+7", "123456789012345678901234567890"] {
            assert!(accepts(text, "isInt(value)"), "{text}");
        }
        for text in ["", "-", "1.5", "1e3", "0x1", " 1"] {
            assert_eq!(
                check_value(&text.into(), "is_int(value)"),
                Ok(false),
                "{text}"
            );
        }
        for text in ["1", ".5", "1.", "-1e-3", "Inf", "-infinity", "NaN"] {
            assert!(accepts(text, "isFloat(value)"), "{text}");
        }
        for text in ["", ".", "1e999", "-NaN", "x", " 1"] {
            assert_eq!(
                check_value(&text.into(), "is_float(value)"),
                Ok(false),
                "{text}"
            );
        }
    }

    #[test]
    fn durations_are_parsed_as_in_properties() {
        for text in ["0", "1d", "1h30m", "2w", "1.5s"] {
            assert!(accepts(text, "isDuration(value)"), "{text}");
        }
        assert_eq!(check_value(&"bob".into(), "is_duration(value)"), Ok(false));
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
    fn an_invalid_pattern_is_an_error_even_if_another_check_succeeds() {
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
    fn too_many_patterns_are_an_error() {
        let code = "all(1..100000, isRegex(value, string(#)) || true)";
        assert!(error("x", code).starts_with("the validation takes too much work"));
    }
}
