//! Expression language of manifests: `Data.port > 80 && "web" in Facts.roles`.
//!
//! An expression is compiled once (`lexer`, `parser`, `check`) into a [`Program`] and evaluated any
//! number of times (`eval`, `ops`, `builtins`, `predicates`). Errors that do not depend on data are
//! found at compile time. Evaluation has no side effects except those of the functions of the
//! [`Env`], and is limited in depth, memory and work.
//!
//! The language and its error messages are those of the Go library Expr. For expressions embedded
//! in text see [`super::expand`].

mod ast;
mod budget;
mod builtins;
mod check;
mod error;
mod eval;
mod kind;
mod lexer;
mod method;
mod operand_types;
mod ops;
mod parser;
mod predicates;
mod runtime_value;
mod suggestion;
mod variables;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use regex::Regex;

use self::ast::{Id, Tree};
use self::budget::Budget;
use self::check::Names;
use self::error::Fault;
use self::eval::Evaluator;
use self::kind::{Item, Kind};
use self::runtime_value::Val;
use self::variables::Variables;
use crate::env::Functions;
use crate::{Env, functions};
use ccm_value::Value;

pub use self::error::{ExprError, Problem};

/// Required type of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expect {
    #[default]
    Any,
    /// A boolean; null counts as false.
    Bool,
}

/// Variables and functions in addition to those of the environment, such as the value under
/// validation.
#[derive(Clone, Default)]
pub struct Extras {
    pub variables: BTreeMap<&'static str, Value>,
    pub functions: Functions,
}

/// Compile options.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    pub expect: Expect,
    /// Only `lookup` exists of the environment's functions.
    pub restricted: bool,
    /// `Facts`, `Data`, `Environ` and the environment's functions do not exist, only the extras.
    pub isolated: bool,
    pub extras: Option<&'a Extras>,
}

/// A compiled expression; cheap to clone.
#[derive(Clone)]
pub struct Program(Arc<Compiled>);

struct Compiled {
    code: Box<str>,
    tree: Tree,
    patterns: BTreeMap<Id, Regex>,
    expect: Expect,
}

impl fmt::Debug for Program {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Program").field(&self.0.code).finish()
    }
}

/// Compiles an expression that may use all names of an [`Env`].
pub fn compile(code: &str, expect: Expect) -> Result<Program, ExprError> {
    compile_with(
        code,
        Options {
            expect,
            ..Options::default()
        },
    )
}

/// Compiles an expression with options.
pub fn compile_with(code: &str, options: Options<'_>) -> Result<Program, ExprError> {
    compiled(code, options).map_err(|fault| fault.into_compile_error(code))
}

fn compiled(code: &str, options: Options<'_>) -> Result<Program, Fault> {
    let variable = |name: &str| {
        if let Some(value) = options.extras.and_then(|extras| extras.variables.get(name)) {
            return Some(Kind::of(value));
        }
        match name {
            _ if options.isolated => None,
            "Facts" | "Data" => Some(Kind::Map(Item::Any)),
            "Environ" => Some(Kind::Map(Item::Text)),
            _ => None,
        }
    };
    let function = |name: &str| {
        let is_extra = options
            .extras
            .is_some_and(|extras| extras.functions.contains_key(name));
        is_extra || (!options.isolated && functions::exists(name, options.restricted))
    };
    let tree = parser::parse(code, &|name| variable(name).is_some() || function(name))?;
    let checked = check::check(
        &tree,
        code,
        &Names {
            variable: &variable,
            function: &function,
        },
    )?;
    let kind = checked.kind;
    if options.expect == Expect::Bool && kind != Kind::Bool && !kind.is_unknown() {
        return Err(Fault::whole(format!("expected bool, but got {kind}")));
    }
    Ok(Program(Arc::new(Compiled {
        code: code.into(),
        tree,
        patterns: checked.patterns,
        expect: options.expect,
    })))
}

impl Program {
    /// Evaluates the expression.
    pub fn run(&self, env: &Env) -> Result<Value, ExprError> {
        self.run_with(env, None, &Cache::default())
    }

    /// Evaluates an expression that may use extras. Expressions that its functions expand are
    /// compiled into `cache`.
    pub fn run_with(
        &self,
        env: &Env,
        extras: Option<&Extras>,
        cache: &Cache,
    ) -> Result<Value, ExprError> {
        self.evaluate(env, extras, cache)
            .map_err(|fault| fault.into_run_error(&self.0.code))
    }

    fn evaluate(&self, env: &Env, extras: Option<&Extras>, cache: &Cache) -> Result<Value, Fault> {
        let mut evaluator = Evaluator {
            tree: &self.0.tree,
            patterns: &self.0.patterns,
            extras,
            cache,
            budget: Budget::new(env),
            variables: Variables::new(),
            scopes: Vec::new(),
            compiled: HashMap::new(),
        };
        let value = evaluator.eval(self.0.tree.root)?;
        if self.0.expect == Expect::Bool {
            return truth(&value).map(Value::Bool);
        }
        value
            .into_value(&mut evaluator.budget)
            .map_err(|reason| Fault::at(0, reason))
    }
}

fn truth(value: &Val) -> Result<bool, Fault> {
    if value.is_null() {
        Ok(false)
    } else {
        value
            .bool()
            .map_err(|_| Fault::at(0, format!("invalid operation: bool({})", value.go_type())))
    }
}

/// Returns whether a condition such as `control.if` holds; null counts as false.
pub fn eval_bool(code: &str, env: &Env, cache: &Cache) -> Result<bool, ExprError> {
    let program = cache.program(code, Expect::Bool, env.restricted)?;
    let value = program.run_with(env, None, cache)?;
    Ok(value == Value::Bool(true))
}

/// Maximum number of programs per combination of options in a cache.
const MAX_CACHED: usize = 4096;

/// Cache of the programs compiled during one run of a manifest; can be shared by threads.
#[derive(Debug, Default)]
pub struct Cache {
    /// Keyed by the options they were compiled with: `restricted`, and whether a boolean is
    /// expected.
    programs: Mutex<BTreeMap<(bool, bool), Programs>>,
}

/// Programs by source code.
type Programs = HashMap<Box<str>, Program>;

impl Cache {
    /// Returns the program of an expression, compiling it if it is not cached.
    pub fn program(
        &self,
        code: &str,
        expect: Expect,
        restricted: bool,
    ) -> Result<Program, ExprError> {
        let key = (restricted, expect == Expect::Bool);
        let cached = |programs: &Programs| programs.get(code).cloned();
        if let Some(program) = self.programs.lock().get(&key).and_then(cached) {
            return Ok(program);
        }
        let options = Options {
            expect,
            restricted,
            ..Options::default()
        };
        let program = compile_with(code, options)?;
        let mut all = self.programs.lock();
        let programs = all.entry(key).or_default();
        // A document repeats its expressions. This many different ones repeat too rarely to keep.
        if programs.len() >= MAX_CACHED {
            programs.clear();
        }
        programs.insert(code.into(), program.clone());
        Ok(program)
    }
}
