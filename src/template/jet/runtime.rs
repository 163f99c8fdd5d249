//! Runs the statements of a parsed template. `evaluate` continues this runtime with expressions.
//!
//! Scopes are a stack. A `:=` lives until the end of the list of statements it stands in; what a
//! yield hands over as content runs with the scopes of its author, the newer ones set aside.
//! Every change of scope, context or source is undone on the way out, also after an error, so
//! `try` only has to cut the output back.
//!
//! Nothing here can run for ever: steps, produced bytes and depth are counted, and an exceeded
//! limit is an error that no `try` catches.

use std::rc::Rc;
use std::sync::Arc;

use super::ast::{
    Assign, Block, Blocks, Body, Branch, Catch, Expr, Node, Parameter, Range, Step, Target,
    TargetKind, Unit, Yield,
};
use super::error::{JetError, Problem, Source, Span, Stage};
use super::item::{self, Item};
use super::operate::Number;
use super::shelf::Shelf;
use crate::model::Value;
use crate::model::value::Map;
use crate::template::env::Functions;

/// How many statements and expressions one rendering may evaluate.
const MAX_STEPS: u64 = 5_000_000;
/// How many bytes of text it may produce, printed or kept in variables.
const MAX_BYTES: usize = 256 * 1024 * 1024;
/// How deep it may go, counting statements, expressions, blocks and included templates.
const MAX_DEPTH: usize = 160;

pub(super) type Run<T> = Result<T, JetError>;

pub(super) struct Runtime<'r> {
    pub variables: &'r Map,
    pub functions: &'r Functions,
    pub shelf: Shelf,
    /// The text that the statements at hand were read from.
    pub source: Arc<Source>,
    /// The outermost holds only what the template assigned to the caller's variables.
    pub scopes: Vec<Scope>,
    pub context: Item,
    content: Option<Rc<Content>>,
    out: Vec<u8>,
    depth: usize,
    steps: u64,
    bytes: usize,
}

#[derive(Default)]
pub(super) struct Scope {
    pub variables: Vec<(Arc<str>, Item)>,
    /// The blocks of the template that begins with this scope.
    pub blocks: Option<Arc<Blocks>>,
}

/// What `yield content` means inside a block, and where its author stood.
struct Content {
    body: Body,
    source: Arc<Source>,
    /// How many scopes there were.
    height: usize,
    outer: Option<Rc<Content>>,
}

impl<'r> Runtime<'r> {
    pub fn new(
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
            depth: 0,
            steps: 0,
            bytes: 0,
        }
    }

    pub fn render(mut self, unit: &Unit) -> Run<Vec<u8>> {
        self.enter_unit(unit)?;
        Ok(self.out)
    }

    /// Runs a template with its blocks in a scope of their own; returns what it returned.
    pub fn enter_unit(&mut self, unit: &Unit) -> Run<Item> {
        let scope = Scope {
            variables: Vec::new(),
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
    pub fn body(&mut self, body: &Body) -> Run<Item> {
        let height = self.scopes.len();
        let result = self.statements(body, height);
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
                return self.deeper(branch.test.span, |r| r.body(&branch.body).map(Some));
            }
        }
        match (otherwise, branches) {
            (Some(body), [.., last]) => self.deeper(last.test.span, |r| r.body(body).map(Some)),
            (None, [_, _, ..]) => Ok(Some(Item::Missing)),
            _ => Ok(None),
        }
    }

    fn range(&mut self, range: &Range, returned: Item) -> Run<Item> {
        let span = range.over.span;
        let over = self.evaluate(&range.over)?;
        let declares = range.binding.as_ref().is_some_and(|b| b.declare);
        let run =
            |runtime: &mut Self| runtime.deeper(span, |r| r.passes(range, span, over, returned));
        if declares {
            self.scoped(Scope::default(), run)
        } else {
            run(self)
        }
    }

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

    fn attempt(&mut self, body: &Body, catch: Option<&Catch>) -> Run<Item> {
        let written = self.out.len();
        let error = match self.body(body) {
            Err(error) if !error.fatal => error,
            result => return result,
        };
        self.out.truncate(written);
        let Some(catch) = catch else {
            return Ok(Item::Missing);
        };
        let mut scope = Scope::default();
        if let Some(name) = &catch.name {
            let failure = Item::Failure(error.caught().into());
            scope.variables.push((name.clone(), failure));
        }
        self.scoped(scope, |runtime| runtime.body(&catch.body))
    }

    /// Runs a block where it is defined, or the one that replaces it.
    fn block(&mut self, block: &Arc<Block>) -> Run<()> {
        let block = self
            .find_block(&block.name)
            .unwrap_or_else(|| block.clone());
        let content = block.content.clone();
        let source = block.source.clone();
        self.with_source(&source, |runtime| {
            let parameters = &block.parameters;
            runtime.run_block(&block, parameters, block.context.as_ref(), content)
        })
    }

    fn yield_block(&mut self, statement: &Yield) -> Run<()> {
        let Yield {
            name,
            span,
            parameters,
            context,
            content,
        } = statement;
        let Some(block) = self.find_block(name) else {
            return Err(self.fail(*span, format!("unresolved block {name:?}!")));
        };
        self.run_block(&block, parameters, context.as_ref(), content.clone())
    }

    fn run_block(
        &mut self,
        block: &Block,
        given: &[Parameter],
        context: Option<&Expr>,
        content: Option<Body>,
    ) -> Run<()> {
        if block.parameters.is_empty() && given.is_empty() {
            return self.block_body(block, context, content);
        }
        self.scoped(Scope::default(), |runtime| {
            runtime.parameters(block, given)?;
            runtime.block_body(block, context, content)
        })
    }

    fn parameters(&mut self, block: &Block, given: &[Parameter]) -> Run<()> {
        for parameter in given {
            let Some(value) = &parameter.value else {
                let name = parameter.name.as_deref().unwrap_or_default();
                let message = format!("missing name for block parameter '{name}'");
                return Err(self.fail(block.span, message));
            };
            let value = self.evaluate(value)?;
            if let Some(name) = &parameter.name {
                self.declare(name, value);
            }
        }
        let source = block.source.clone();
        self.with_source(&source, |runtime| {
            for Parameter { name, value } in &block.parameters {
                let Some(name) = name else { continue };
                if runtime.is_declared(name) {
                    continue;
                }
                let value = match value {
                    Some(value) => runtime.evaluate(value)?,
                    None => Item::Data(false.into()),
                };
                runtime.declare(name, value);
            }
            Ok(())
        })
    }

    fn block_body(
        &mut self,
        block: &Block,
        context: Option<&Expr>,
        content: Option<Body>,
    ) -> Run<()> {
        let context = match context {
            Some(context) => self.evaluate(context)?,
            None => self.context.clone(),
        };
        let outer = self.content.clone();
        if let Some(body) = content {
            self.content = Some(Rc::new(Content {
                body,
                source: self.source.clone(),
                height: self.scopes.len(),
                outer: outer.clone(),
            }));
        }
        let result = self.deeper(block.span, |runtime| {
            runtime.with_source(&block.source, |runtime| {
                runtime.with_context(context, |runtime| runtime.body(&block.body))
            })
        });
        self.content = outer;
        result.map(drop)
    }

    /// Runs the content that was handed to the block at hand, as its author saw the world.
    fn yield_content(&mut self, context: Option<&Expr>) -> Run<()> {
        let Some(content) = self.content.clone() else {
            return Ok(());
        };
        let newer = self.scopes.split_off(content.height.min(self.scopes.len()));
        let inner = std::mem::replace(&mut self.content, content.outer.clone());
        let result = self.content_body(&content, context);
        self.content = inner;
        self.scopes.truncate(content.height);
        self.scopes.extend(newer);
        result
    }

    fn content_body(&mut self, content: &Content, context: Option<&Expr>) -> Run<()> {
        let context = match context {
            Some(context) => self.evaluate(context)?,
            None => self.context.clone(),
        };
        self.deeper(Span::default(), |runtime| {
            runtime.with_source(&content.source, |runtime| {
                runtime.with_context(context, |runtime| runtime.body(&content.body))
            })
        })
        .map(drop)
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
            Err(message) => return Err(self.fail(name.span, message)),
        };
        let context = match context {
            Some(context) => self.evaluate(context)?,
            None => self.context.clone(),
        };
        self.deeper(name.span, |runtime| {
            runtime.with_context(context, |runtime| runtime.enter_unit(&unit))
        })
    }

    fn assign(&mut self, assign: &Assign) -> Run<()> {
        let declare = assign.declare;
        if let ([first, second], [value]) = (assign.targets.as_slice(), assign.values.as_slice()) {
            let value = self.evaluate(value)?;
            let found = !matches!(value, Item::Missing);
            self.put(declare, first, value)?;
            return self.put(declare, second, Item::Data(found.into()));
        }
        for (target, value) in assign.targets.iter().zip(&assign.values) {
            let value = self.evaluate(value)?;
            self.put(declare, target, value)?;
        }
        Ok(())
    }

    fn put(&mut self, declare: bool, target: &Target, value: Item) -> Run<()> {
        match &target.kind {
            TargetKind::Variable(name) if declare => {
                self.declare(name, value);
                Ok(())
            }
            _ => self.set(target, value),
        }
    }

    fn declare(&mut self, name: &Arc<str>, value: Item) {
        let Some(scope) = self.scopes.last_mut() else {
            return;
        };
        match scope.variables.iter_mut().find(|(known, _)| known == name) {
            Some((_, slot)) => *slot = value,
            None => scope.variables.push((name.clone(), value)),
        }
    }

    fn is_declared(&self, name: &str) -> bool {
        let scope = self.scopes.last();
        scope.is_some_and(|scope| scope.variables.iter().any(|(known, _)| &**known == name))
    }

    /// Assigns to what exists: a variable, or a field below one.
    fn set(&mut self, target: &Target, value: Item) -> Run<()> {
        match &target.kind {
            TargetKind::Discard => Ok(()),
            TargetKind::Variable(name) => {
                if let Some(slot) = self.slot(name) {
                    *slot = value;
                    return Ok(());
                }
                let shown = self.show(&value);
                let message = format!(
                    "could not assign {name:?} = {shown} because variable {name:?} is uninitialised"
                );
                Err(self.fail(target.span, message))
            }
            TargetKind::Field {
                variable,
                steps,
                last,
            } => self.set_field(target.span, variable.as_ref(), steps, last, value),
        }
    }

    /// Returns where a variable lives. One of the caller's is copied first.
    fn slot(&mut self, name: &Arc<str>) -> Option<&mut Item> {
        let holds = |scope: &Scope| scope.variables.iter().any(|(known, _)| known == name);
        let at = match self.scopes.iter().rposition(holds) {
            Some(at) => at,
            None => {
                let value = self.variables.get(name)?.clone();
                let outermost = self.scopes.first_mut()?;
                outermost.variables.push((name.clone(), Item::Data(value)));
                0
            }
        };
        let scope = self.scopes.get_mut(at)?;
        let found = scope.variables.iter_mut().find(|(known, _)| known == name);
        found.map(|(_, slot)| slot)
    }

    fn set_field(
        &mut self,
        span: Span,
        variable: Option<&Arc<str>>,
        steps: &[Step],
        last: &Arc<str>,
        value: Item,
    ) -> Run<()> {
        let mut keys = Vec::with_capacity(steps.len());
        for step in steps {
            keys.push(match step {
                Step::Index(index) => self.evaluate(index)?,
                Step::Field(name) => Item::Data(Value::Str(name.clone())),
                Step::Slice(..) | Step::Call(_) => Item::Missing,
            });
        }
        let value = match value {
            Item::Missing => None,
            value => Some(self.to_value(value, span)?),
        };
        // The value is taken out, so that a map that nobody shares is changed in place.
        let taken = match variable {
            Some(name) => match self.slot(name) {
                Some(slot) => std::mem::replace(slot, Item::Missing),
                None => {
                    let message =
                        format!("identifier {name:?} is not available in the current scope");
                    return Err(self.fail(span, message));
                }
            },
            None => std::mem::replace(&mut self.context, Item::Missing),
        };
        let (changed, result) = match taken {
            Item::Data(mut root) => {
                let result = insert(&mut root, &keys, last, value)
                    .and_then(|()| item::weigh(&root).map_err(Problem::from));
                (Item::Data(root), result)
            }
            other => {
                let name = other.type_name();
                let message = format!("there is no field or method '{last}' in {name}");
                (other, Err(message.into()))
            }
        };
        match variable.and_then(|name| self.slot(name)) {
            Some(slot) => *slot = changed,
            None => self.context = changed,
        }
        let weight = result.map_err(|problem| self.fail(span, problem))?;
        self.charge(weight / 8, span)
    }

    fn find_block(&self, name: &str) -> Option<Arc<Block>> {
        let layers = self.scopes.iter().rev().filter_map(|s| s.blocks.as_ref());
        layers
            .into_iter()
            .find_map(|blocks| blocks.get(name))
            .cloned()
    }

    /// Runs with one more scope.
    pub fn scoped<T>(&mut self, scope: Scope, run: impl FnOnce(&mut Self) -> Run<T>) -> Run<T> {
        let height = self.scopes.len();
        self.scopes.push(scope);
        let result = run(self);
        self.scopes.truncate(height);
        result
    }

    pub fn with_context<T>(
        &mut self,
        context: Item,
        run: impl FnOnce(&mut Self) -> Run<T>,
    ) -> Run<T> {
        let outer = std::mem::replace(&mut self.context, context);
        let result = run(self);
        self.context = outer;
        result
    }

    fn with_source<T>(
        &mut self,
        source: &Arc<Source>,
        run: impl FnOnce(&mut Self) -> Run<T>,
    ) -> Run<T> {
        let outer = std::mem::replace(&mut self.source, source.clone());
        let result = run(self);
        self.source = outer;
        result
    }

    /// Runs one level deeper, unless that is too deep for the stack.
    pub fn deeper<T>(&mut self, span: Span, run: impl FnOnce(&mut Self) -> Run<T>) -> Run<T> {
        self.step(span)?;
        if self.depth >= MAX_DEPTH {
            return Err(self.limit(span, format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.depth += 1;
        let result = run(self);
        self.depth -= 1;
        result
    }

    pub fn step(&mut self, span: Span) -> Run<()> {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            return Err(self.limit(span, format!("more than {MAX_STEPS} steps")));
        }
        Ok(())
    }

    /// Counts bytes that were, or are about to be, produced or looked through.
    pub fn charge(&mut self, bytes: usize, span: Span) -> Run<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > MAX_BYTES {
            return Err(self.limit(span, format!("more than {MAX_BYTES} bytes of text")));
        }
        Ok(())
    }

    pub fn write(&mut self, bytes: &[u8], span: Span) -> Run<()> {
        self.charge(bytes.len(), span)?;
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    /// Runs without output.
    pub fn silently<T>(&mut self, run: impl FnOnce(&mut Self) -> Run<T>) -> Run<T> {
        let written = self.out.len();
        let result = run(self);
        self.out.truncate(written);
        result
    }

    pub fn fail(&self, span: Span, problem: impl Into<Problem>) -> JetError {
        let Problem { message, bare } = problem.into();
        JetError {
            bare,
            ..self.source.error(Stage::Run, span, message)
        }
    }

    pub fn limit(&self, span: Span, message: String) -> JetError {
        JetError {
            fatal: true,
            ..self.fail(span, message)
        }
    }
}

/// Puts a value below `root`, at the end of a path of keys; no value removes the entry.
fn insert(
    root: &mut Value,
    keys: &[Item],
    last: &Arc<str>,
    value: Option<Value>,
) -> Result<(), Problem> {
    let mut place = root;
    for key in keys {
        place = match (place, key) {
            (Value::Map(map), Item::Data(Value::Str(key))) => {
                let entry = Arc::make_mut(map).get_mut(key);
                entry.ok_or_else(|| {
                    format!("there is no field or method '{key}' in map[string]interface {{}}")
                })?
            }
            (Value::List(list), key) => {
                let index = Number::of(key).ok_or("cannot index slice/array/string with text")?;
                let index = index.to_int();
                let items = Arc::make_mut(list);
                let slot = usize::try_from(index).ok().and_then(|i| items.get_mut(i));
                slot.ok_or_else(|| format!("index out of range: {index}"))?
            }
            (other, _) => {
                return Err(format!("can't assign inside a {}", item::go_type(other)).into());
            }
        };
    }
    let Value::Map(map) = place else {
        let name = item::go_type(place);
        return Err(format!("can't assign '{last}' in a {name}").into());
    };
    let map = Arc::make_mut(map);
    match value {
        Some(value) => map.insert(last.clone(), value),
        None => map.remove(last),
    };
    Ok(())
}
