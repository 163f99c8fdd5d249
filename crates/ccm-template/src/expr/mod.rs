//! The expression language of manifests: `Data.port > 80 && "web" in Facts.roles`.
//!
//! An expression is compiled once (`lexer`, `parser`, `check`) into a [`Program`] and run as often
//! as needed (`eval`, `ops`, `builtins`). Mistakes that can be seen without data are found when
//! compiling. Running is pure but for the functions of the [`Env`], and bounded in depth, memory
//! and work whatever the expression says.
//!
//! The language is Expr, known from its Go implementation; the texts of errors are too. Where
//! expressions stand in other text, see [`super::expand`].

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

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use regex::Regex;

use self::ast::{Id, Tree};
use self::budget::Budget;
use self::check::Names;
use self::error::Fault;
use self::eval::Machine;
use self::kind::{Item, Kind};
use self::runtime_value::Val;
use crate::env::Functions;
use crate::{Env, functions};
use ccm_value::Value;

pub use self::error::{ExprError, Place, Problem};

/// What the author of an expression must deliver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expect {
    #[default]
    Any,
    /// True or false; null counts as false.
    Bool,
}

/// Names that exist beside those of the environment: the value under validation, its checks.
#[derive(Clone, Default)]
pub struct Extras {
    pub variables: BTreeMap<&'static str, Value>,
    pub functions: Functions,
}

/// How an expression is compiled.
#[derive(Clone, Copy, Default)]
pub struct Options<'a> {
    pub expect: Expect,
    /// Of the functions of the environment only `lookup` exists.
    pub restricted: bool,
    /// `Facts`, `Data`, `Environ` and their functions do not exist: only the extras do.
    pub isolated: bool,
    pub extras: Option<&'a Extras>,
}

/// A compiled expression. Clones share it.
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

/// Compiles an expression that may use everything an [`Env`] offers.
pub fn compile(code: &str, expect: Expect) -> Result<Program, ExprError> {
    compile_with(
        code,
        Options {
            expect,
            ..Options::default()
        },
    )
}

/// Compiles an expression.
pub fn compile_with(code: &str, options: Options<'_>) -> Result<Program, ExprError> {
    compiled(code, options).map_err(|fault| fault.compile(code))
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
    /// Returns the value of the expression.
    pub fn run(&self, env: &Env) -> Result<Value, ExprError> {
        self.run_with(env, None, &Cache::default())
    }

    /// Returns the value of the expression, which may name extras. Expressions that its functions
    /// expand are compiled into `cache`.
    pub fn run_with(
        &self,
        env: &Env,
        extras: Option<&Extras>,
        cache: &Cache,
    ) -> Result<Value, ExprError> {
        self.evaluate(env, extras, cache)
            .map_err(|fault| fault.run(&self.0.code))
    }

    fn evaluate(&self, env: &Env, extras: Option<&Extras>, cache: &Cache) -> Result<Value, Fault> {
        let mut machine = Machine {
            tree: &self.0.tree,
            patterns: &self.0.patterns,
            extras,
            cache,
            budget: Budget::new(env),
            variables: Vec::new(),
            scopes: Vec::new(),
            compiled: HashMap::new(),
        };
        let value = machine.eval(self.0.tree.root)?;
        if self.0.expect == Expect::Bool {
            return truth(&value).map(Value::Bool);
        }
        value
            .into_value(&mut machine.budget)
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

/// How many programs a cache keeps.
const MAX_CACHED: usize = 4096;

/// Programs compiled during one run of a manifest. Threads may share it.
#[derive(Debug, Default)]
pub struct Cache {
    /// One shelf for each combination of `restricted` and what must be delivered.
    shelves: Mutex<BTreeMap<(bool, bool), Shelf>>,
}

/// Programs by their code.
type Shelf = HashMap<Box<str>, Program>;

impl Cache {
    /// Returns the program of an expression, compiling it if it is new.
    pub fn program(
        &self,
        code: &str,
        expect: Expect,
        restricted: bool,
    ) -> Result<Program, ExprError> {
        let key = (restricted, expect == Expect::Bool);
        let known = |shelf: &Shelf| shelf.get(code).cloned();
        if let Some(program) = self.lock().get(&key).and_then(known) {
            return Ok(program);
        }
        let options = Options {
            expect,
            restricted,
            ..Options::default()
        };
        let program = compile_with(code, options)?;
        let mut shelves = self.lock();
        let shelf = shelves.entry(key).or_default();
        // Expressions of a document repeat; once there are this many they do not.
        if shelf.len() >= MAX_CACHED {
            shelf.clear();
        }
        shelf.insert(code.into(), program.clone());
        Ok(program)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(bool, bool), Shelf>> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
