//! Runs the statements of a parsed template. `block`, `assign`, `evaluate`, `access` and `call`
//! continue this runtime.
//!
//! Scopes are a stack. A `:=` lives until the end of the list of statements it stands in; what a
//! yield hands over as content runs with the scopes of its author, the newer ones set aside.
//! Every change of scope, context or source is undone on the way out, also after an error, so
//! `try` only has to cut the output back.
//!
//! Nothing here can run for ever: steps, produced bytes and depth are counted, and an exceeded
//! limit is an error that no `try` catches.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Blocks, Body, Branch, Catch, Expr, Node, Range, Unit};
use super::block::Content;
use super::error::{Fault, Problem, Source, Span, Stage};
use super::loader::Shelf;
use super::operand::Item;
use crate::CallError;
use crate::env::Functions;
use ccm_value::Value;
use ccm_value::value::Map;

/// How many statements and expressions one rendering may evaluate.
const MAX_STEPS: u64 = 5_000_000;
/// How many bytes of text it may produce, printed or kept in variables.
const MAX_BYTES: usize = 256 * 1024 * 1024;
/// How deep it may go, counting statements, expressions, blocks and included templates.
const MAX_DEPTH: usize = 150;

pub(super) type Run<T> = Result<T, Fault>;

pub(super) struct Runtime<'r> {
    pub variables: &'r Map,
    pub functions: &'r Functions,
    pub shelf: Shelf,
    /// The text that the statements at hand were read from.
    pub source: Arc<Source>,
    /// The outermost holds only what the template assigned to the caller's variables.
    pub scopes: Vec<Scope>,
    pub context: Item,
    pub content: Option<Rc<Content>>,
    out: Vec<u8>,
    /// What was evaluated last.
    at: Span,
    depth: usize,
    steps: u64,
    bytes: usize,
}

#[derive(Default)]
pub(super) struct Scope {
    pub variables: BTreeMap<Arc<str>, Item>,
    /// The blocks of the template that begins with this scope.
    pub blocks: Option<Arc<Blocks>>,
}

impl<'r> Runtime<'r> {
    pub(super) fn new(
        unit: &Unit,
        shelf: Shelf,
        variables: &'r Map,
        context: &Value,
        functions: &'r Functions,
    ) -> Self {
        Self {
            variables,
            functions,
            shelf,
            source: unit.source.clone(),
            scopes: vec![Scope::default()],
            context: Item::from_answer(context.clone()),
            content: None,
            out: Vec::new(),
            at: Span::default(),
            depth: 0,
            steps: 0,
            bytes: 0,
        }
    }

    pub(super) fn render(mut self, unit: &Unit) -> Run<Vec<u8>> {
        self.enter_unit(unit)?;
        Ok(self.out)
    }

    /// Runs a template with its blocks in a scope of their own; returns what it returned.
    pub(super) fn enter_unit(&mut self, unit: &Unit) -> Run<Item> {
        let scope = Scope {
            variables: BTreeMap::new(),
            blocks: Some(unit.blocks.clone()),
        };
        let mut top = unit;
        while let Some(base) = &top.base {
            top = base;
        }
        self.scoped(scope, |runtime| {
            runtime.with_source(&top.source, |runtime| runtime.body(&top.root))
        })
    }

    /// Runs a list of statements. Returns what the last of them returned: `return` does not stop
    /// a list, it only leaves a value, which ends the range around it.
    pub(super) fn body(&mut self, body: &Body) -> Run<Item> {
        let height = self.scopes.len();
        let result = self.deeper(self.at, |runtime| runtime.statements(body, height));
        self.scopes.truncate(height);
        result
    }

    fn statements(&mut self, body: &Body, height: usize) -> Run<Item> {
        let mut returned = Item::Missing;
        for node in body.iter() {
            match node {
                Node::Text(span) => {
                    let source = self.source.clone();
                    self.write(source.slice(*span), *span)?;
                }
                Node::Action { assign, pipeline } => {
                    if let Some(assign) = assign {
                        if assign.declare && self.scopes.len() == height {
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
                Node::Try { body, catch } => returned = self.attempt(body, catch.as_ref())?,
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

    /// Runs the first branch that holds; returns nothing when there was none to run.
    fn branches(&mut self, branches: &[Branch], otherwise: Option<&Body>) -> Run<Option<Item>> {
        let height = self.scopes.len();
        let result = self.first_branch(branches, otherwise);
        self.scopes.truncate(height);
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
            self.scoped(Scope::default(), |r| r.passes(range, span, over, returned))
        } else {
            self.passes(range, span, over, returned)
        }
    }

    /// Runs a range over a value, or its `else` when there is nothing to walk.
    fn passes(&mut self, range: &Range, span: Span, over: Item, returned: Item) -> Run<Item> {
        let mut returned = returned;
        let mut passes = 0_usize;
        let mut pass = |runtime: &mut Self, key: Item, value: Item| -> Run<bool> {
            passes += 1;
            if !matches!(returned, Item::Missing) {
                return Ok(false);
            }
            returned = runtime.pass(range, span, key, value)?;
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

    fn pass(&mut self, range: &Range, span: Span, key: Item, value: Item) -> Run<Item> {
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

    /// Runs a body; if it fails, its output is dropped and the catch runs.
    fn attempt(&mut self, body: &Body, catch: Option<&Catch>) -> Run<Item> {
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
            let failure = Item::Failure(error.caught().into());
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
        let unit = match self.shelf.sibling(&self.source.name, &path) {
            Ok(unit) => unit,
            Err(err) => return Err(self.fail(name.span, err)),
        };
        let context = match context {
            Some(context) => self.evaluate(context)?,
            None => self.context.clone(),
        };
        self.with_context(context, |runtime| runtime.enter_unit(&unit))
    }

    /// Runs with one more scope.
    pub(super) fn scoped<T>(
        &mut self,
        scope: Scope,
        run: impl FnOnce(&mut Self) -> Run<T>,
    ) -> Run<T> {
        let height = self.scopes.len();
        self.scopes.push(scope);
        let result = run(self);
        self.scopes.truncate(height);
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

    /// Runs one level deeper, unless that is too deep for the stack. Every recursion passes here.
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

    /// Counts bytes that were, or are about to be, produced or looked through.
    pub(super) fn charge(&mut self, bytes: usize, span: Span) -> Run<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > MAX_BYTES {
            return Err(self.limit(span, format!("more than {MAX_BYTES} bytes of text")));
        }
        Ok(())
    }

    /// Counts an error that was caught: finding its line took a walk through the text.
    pub(super) fn charge_error(&mut self) -> Run<()> {
        self.charge(self.source.text.len() / 8, self.at)
    }

    pub(super) fn write(&mut self, bytes: &[u8], span: Span) -> Run<()> {
        self.charge(bytes.len(), span)?;
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    /// Runs without output.
    pub(super) fn silently<T>(&mut self, run: impl FnOnce(&mut Self) -> Run<T>) -> Run<T> {
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
