//! Runtime: runs the statements of a parsed template. Continued in `block`, `assign`, `evaluate`,
//! `access` and `call`.
//!
//! Scopes are a stack. A variable declared with `:=` lives until the end of its list of statements;
//! the content of a yield runs with the scopes in which it was written, without the newer ones.
//! Every change of scope, context or source is undone on return, also after an error, so `try` only
//! has to truncate the output.
//!
//! Steps, output bytes and depth are counted; an exceeded limit is an error that `try` cannot
//! catch.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Blocks, Body, Branch, Catch, Expr, Node, ParsedTemplate, Range};
use super::block::Content;
use super::error::{Fault, Problem, Source, Span, Stage};
use super::loader::TemplateCache;
use super::operand::Item;
use crate::CallError;
use crate::env::Functions;
use ccm_value::Value;
use ccm_value::value::Map;

/// Maximum number of statements and expressions evaluated in one rendering.
const MAX_STEPS: u64 = 5_000_000;
/// Maximum number of bytes of text produced, printed or stored in variables.
const MAX_BYTES: usize = 256 * 1024 * 1024;
/// Maximum depth, counting statements, expressions, blocks and included templates.
const MAX_DEPTH: usize = 150;

pub(super) type Run<T> = Result<T, Fault>;

pub(super) struct Runtime<'r> {
    pub variables: &'r Map,
    pub functions: &'r Functions,
    pub templates: TemplateCache,
    /// Source of the current statements.
    pub source: Arc<Source>,
    /// The outermost scope contains only what the template assigned to the caller's variables.
    pub scopes: Vec<Scope>,
    pub context: Item,
    pub content: Option<Rc<Content>>,
    out: Vec<u8>,
    /// Span of the last evaluated expression.
    at: Span,
    depth: usize,
    steps: u64,
    bytes: usize,
}

#[derive(Default)]
pub(super) struct Scope {
    pub variables: BTreeMap<Arc<str>, Item>,
    /// Blocks of the template that starts with this scope.
    pub blocks: Option<Arc<Blocks>>,
}

impl<'r> Runtime<'r> {
    pub(super) fn new(
        parsed: &ParsedTemplate,
        templates: TemplateCache,
        variables: &'r Map,
        context: &Value,
        functions: &'r Functions,
    ) -> Self {
        Self {
            variables,
            functions,
            templates,
            source: parsed.source.clone(),
            scopes: vec![Scope::default()],
            context: Item::from_result(context.clone()),
            content: None,
            out: Vec::new(),
            at: Span::default(),
            depth: 0,
            steps: 0,
            bytes: 0,
        }
    }

    pub(super) fn render(mut self, parsed: &ParsedTemplate) -> Run<Vec<u8>> {
        self.run_template(parsed)?;
        Ok(self.out)
    }

    /// Runs a template with its blocks in a new scope; returns its `return` value.
    pub(super) fn run_template(&mut self, parsed: &ParsedTemplate) -> Run<Item> {
        let scope = Scope {
            variables: BTreeMap::new(),
            blocks: Some(parsed.blocks.clone()),
        };
        let mut top = parsed;
        while let Some(base) = &top.base {
            top = base;
        }
        self.scoped(scope, |runtime| {
            runtime.with_source(&top.source, |runtime| runtime.body(&top.root))
        })
    }

    /// Runs a list of statements. Returns the last `return` value: `return` does not stop the list,
    /// but it ends the enclosing range.
    pub(super) fn body(&mut self, body: &Body) -> Run<Item> {
        let scope_count = self.scopes.len();
        let result = self.deeper(self.at, |runtime| runtime.statements(body, scope_count));
        self.scopes.truncate(scope_count);
        result
    }

    fn statements(&mut self, body: &Body, scope_count: usize) -> Run<Item> {
        let mut returned = Item::Missing;
        for node in body.iter() {
            match node {
                Node::Text(span) => {
                    let source = self.source.clone();
                    self.write(source.slice(*span), *span)?;
                }
                Node::Action { assign, pipeline } => {
                    if let Some(assign) = assign {
                        if assign.declare && self.scopes.len() == scope_count {
                            self.scopes.push(Scope::default());
                        }
                        self.assign(assign)?;
                    }
                    if let Some(pipeline) = pipeline {
                        self.pipeline(pipeline)?;
                    }
                }
                Node::If {
                    branches,
                    otherwise,
                } => {
                    if let Some(value) = self.branches(branches, otherwise.as_ref())? {
                        returned = value;
                    }
                }
                Node::Range(range) => returned = self.range(range, returned)?,
                Node::Try { body, catch } => returned = self.try_catch(body, catch.as_ref())?,
                Node::Block(block) => self.block(block)?,
                Node::Yield(statement) => self.yield_block(statement)?,
                Node::Content(context) => self.yield_content(context.as_ref())?,
                Node::Include { name, context } => {
                    returned = self.include(name, context.as_ref())?;
                }
                Node::Return(value) => returned = self.evaluate(value)?,
            }
        }
        Ok(returned)
    }

    /// Runs the first branch whose condition is true; `None` if there is none.
    fn branches(&mut self, branches: &[Branch], otherwise: Option<&Body>) -> Run<Option<Item>> {
        let scope_count = self.scopes.len();
        let result = self.first_branch(branches, otherwise);
        self.scopes.truncate(scope_count);
        result
    }

    fn first_branch(&mut self, branches: &[Branch], otherwise: Option<&Body>) -> Run<Option<Item>> {
        for branch in branches {
            if let Some(assign) = &branch.assign {
                if assign.declare {
                    self.scopes.push(Scope::default());
                }
                self.assign(assign)?;
            }
            if self.evaluate(&branch.test)?.is_true() {
                return self.body(&branch.body).map(Some);
            }
        }
        match (otherwise, branches) {
            (Some(body), _) => self.body(body).map(Some),
            (None, [_, _, ..]) => Ok(Some(Item::Missing)),
            _ => Ok(None),
        }
    }

    fn range(&mut self, range: &Range, returned: Item) -> Run<Item> {
        let span = range.over.span;
        let over = self.evaluate(&range.over)?;
        let declares = range.binding.as_ref().is_some_and(|b| b.declare);
        if declares {
            self.scoped(Scope::default(), |r| {
                r.iterations(range, span, over, returned)
            })
        } else {
            self.iterations(range, span, over, returned)
        }
    }

    /// Runs a range over a value, or its `else` if the value is empty.
    fn iterations(&mut self, range: &Range, span: Span, over: Item, returned: Item) -> Run<Item> {
        let mut returned = returned;
        let mut passes = 0_usize;
        let mut pass = |runtime: &mut Self, key: Item, value: Item| -> Run<bool> {
            passes += 1;
            if !matches!(returned, Item::Missing) {
                return Ok(false);
            }
            returned = runtime.iteration(range, span, key, value)?;
            Ok(matches!(returned, Item::Missing))
        };
        match over {
            Item::Data(Value::List(list)) => {
                for (index, value) in (0_i64..).zip(list.iter()) {
                    let key = Item::Data(index.into());
                    if !pass(self, key, Item::Data(value.clone()))? {
                        break;
                    }
                }
            }
            Item::Data(Value::Map(map)) => {
                for (key, value) in map.iter() {
                    let key = Item::Data(Value::Str(key.clone()));
                    if !pass(self, key, Item::Data(value.clone()))? {
                        break;
                    }
                }
            }
            Item::Ints(from, to) => {
                for (index, value) in (0_i64..).zip(from..to) {
                    let key = Item::Data(index.into());
                    if !pass(self, key, Item::Data(value.into()))? {
                        break;
                    }
                }
            }
            Item::Missing => return Err(self.fail(span, "can't range over invalid value")),
            Item::Data(Value::Null) => {
                let message = "cannot range over nil pointer/interface (interface {})";
                return Err(self.fail(span, message));
            }
            other => {
                let (shown, name) = (self.show(&other), other.type_name());
                let message = format!("value {shown} (type {name}) is not rangeable");
                return Err(self.fail(span, message));
            }
        }
        match &range.otherwise {
            Some(otherwise) if passes == 0 => self.body(otherwise),
            _ => Ok(returned),
        }
    }

    fn iteration(&mut self, range: &Range, span: Span, key: Item, value: Item) -> Run<Item> {
        self.step(span)?;
        let Some(binding) = &range.binding else {
            return self.with_context(value, |runtime| runtime.body(&range.body));
        };
        self.put(binding.declare, &binding.key, key)?;
        if let Some(target) = &binding.value {
            self.put(binding.declare, target, value)?;
            self.body(&range.body)
        } else {
            self.with_context(value, |runtime| runtime.body(&range.body))
        }
    }

    /// Runs a body; if it fails, drops its output and runs the catch.
    fn try_catch(&mut self, body: &Body, catch: Option<&Catch>) -> Run<Item> {
        let written = self.out.len();
        let error = match self.body(body) {
            Err(error) if !error.fatal => error,
            result => return result,
        };
        self.charge_error()?;
        self.out.truncate(written);
        let Some(catch) = catch else {
            return Ok(Item::Missing);
        };
        let mut scope = Scope::default();
        if let Some(name) = &catch.name {
            let failure = Item::Error(error.caught().into());
            scope.variables.insert(name.clone(), failure);
        }
        self.scoped(scope, |runtime| runtime.body(&catch.body))
    }

    fn include(&mut self, name: &Expr, context: Option<&Expr>) -> Run<Item> {
        let item = self.evaluate(name)?;
        let Some(path) = item.as_text() else {
            let reason = match &item {
                Item::Missing => "name is not a valid value".into(),
                other => format!("unexpected expression type {:?}", other.type_name()),
            };
            let message = format!("evaluating name of template to include: {reason}");
            return Err(self.fail(name.span, message));
        };
        let path = String::from_utf8_lossy(path);
        let parsed = match self.templates.load_relative(&self.source.name, &path) {
            Ok(parsed) => parsed,
            Err(err) => return Err(self.fail(name.span, err)),
        };
        let context = match context {
            Some(context) => self.evaluate(context)?,
            None => self.context.clone(),
        };
        self.with_context(context, |runtime| runtime.run_template(&parsed))
    }

    /// Runs `run` in a new scope.
    pub(super) fn scoped<T>(
        &mut self,
        scope: Scope,
        run: impl FnOnce(&mut Self) -> Run<T>,
    ) -> Run<T> {
        let scope_count = self.scopes.len();
        self.scopes.push(scope);
        let result = run(self);
        self.scopes.truncate(scope_count);
        result
    }

    pub(super) fn with_context<T>(
        &mut self,
        context: Item,
        run: impl FnOnce(&mut Self) -> Run<T>,
    ) -> Run<T> {
        let outer = std::mem::replace(&mut self.context, context);
        let result = run(self);
        self.context = outer;
        result
    }

    pub(super) fn with_source<T>(
        &mut self,
        source: &Arc<Source>,
        run: impl FnOnce(&mut Self) -> Run<T>,
    ) -> Run<T> {
        let outer = std::mem::replace(&mut self.source, source.clone());
        let result = run(self);
        self.source = outer;
        result
    }

    /// Runs one nesting level deeper; fails at the limit. Every recursion goes through here.
    pub(super) fn deeper<T>(
        &mut self,
        span: Span,
        run: impl FnOnce(&mut Self) -> Run<T>,
    ) -> Run<T> {
        self.step(span)?;
        if self.depth >= MAX_DEPTH {
            return Err(self.limit(span, format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.depth += 1;
        let result = run(self);
        self.depth -= 1;
        result
    }

    pub(super) fn step(&mut self, span: Span) -> Run<()> {
        self.at = span;
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(self.limit(span, format!("more than {MAX_STEPS} steps")));
        }
        Ok(())
    }

    /// Counts bytes that are produced or read.
    pub(super) fn charge(&mut self, bytes: usize, span: Span) -> Run<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > MAX_BYTES {
            return Err(self.limit(span, format!("more than {MAX_BYTES} bytes of text")));
        }
        Ok(())
    }

    /// Counts the cost of a caught error: computing its line scanned the source.
    pub(super) fn charge_error(&mut self) -> Run<()> {
        self.charge(self.source.text.len() / 8, self.at)
    }

    pub(super) fn write(&mut self, bytes: &[u8], span: Span) -> Run<()> {
        self.charge(bytes.len(), span)?;
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    /// Runs `run` and drops its output.
    pub(super) fn without_output<T>(&mut self, run: impl FnOnce(&mut Self) -> Run<T>) -> Run<T> {
        let written = self.out.len();
        let result = run(self);
        self.out.truncate(written);
        result
    }

    pub(super) fn fail(&self, span: Span, problem: impl Into<Problem>) -> Fault {
        let Problem { message, bare } = problem.into();
        let mut fault = self.source.error(Stage::Run, span, message);
        fault.bare = bare;
        fault
    }

    pub(super) fn limit(&self, span: Span, message: impl Into<CallError>) -> Fault {
        let mut fault = self.fail(span, message.into());
        fault.fatal = true;
        fault
    }
}
