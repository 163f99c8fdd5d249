//! Runtime: blocks, yields, and the content that a yield passes to a block.

use std::rc::Rc;
use std::sync::Arc;

use super::ast::{Block, Body, Expr, Parameter, Yield};
use super::error::Source;
use super::operand::Item;
use super::runtime::{Run, Runtime, Scope};
use ccm_value::quote::quote;

/// The content of a yield, and the scope in which it was written.
pub(super) struct Content {
    body: Body,
    source: Arc<Source>,
    /// Number of scopes at that point.
    scope_count: usize,
    outer: Option<Rc<Content>>,
}

impl Runtime<'_> {
    /// Runs a block where it is defined, or the block that overrides it.
    pub(super) fn block(&mut self, block: &Arc<Block>) -> Run<()> {
        let block = self
            .find_block(&block.name)
            .unwrap_or_else(|| block.clone());
        let Block {
            parameters,
            context,
            content,
            ..
        } = &*block;
        self.with_source(&block.source, |runtime| {
            runtime.run_block(&block, parameters, context.as_ref(), content.clone())
        })
    }

    /// Runs the block of a yield.
    pub(super) fn yield_block(&mut self, statement: &Yield) -> Run<()> {
        let Yield {
            name,
            span,
            parameters,
            context,
            content,
        } = statement;
        let Some(block) = self.find_block(name) else {
            return Err(self.fail(*span, format!("unresolved block {}!", quote(name))));
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

    /// Declares the given parameters, then the missing ones with their defaults.
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
        self.with_source(&block.source, |runtime| {
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
                scope_count: self.scopes.len(),
                outer: outer.clone(),
            }));
        }
        let result = self.with_source(&block.source, |runtime| {
            runtime.with_context(context, |runtime| runtime.body(&block.body))
        });
        self.content = outer;
        result.map(drop)
    }

    /// Runs the content passed to the current block, in the scope where it was written.
    pub(super) fn yield_content(&mut self, context: Option<&Expr>) -> Run<()> {
        let Some(content) = self.content.clone() else {
            return Ok(());
        };
        let newer = self
            .scopes
            .split_off(content.scope_count.min(self.scopes.len()));
        let inner = std::mem::replace(&mut self.content, content.outer.clone());
        let result = self.content_body(&content, context);
        self.content = inner;
        self.scopes.truncate(content.scope_count);
        self.scopes.extend(newer);
        result
    }

    fn content_body(&mut self, content: &Content, context: Option<&Expr>) -> Run<()> {
        let context = match context {
            Some(context) => self.evaluate(context)?,
            None => self.context.clone(),
        };
        let result = self.with_source(&content.source, |runtime| {
            runtime.with_context(context, |runtime| runtime.body(&content.body))
        });
        result.map(drop)
    }

    fn find_block(&self, name: &str) -> Option<Arc<Block>> {
        let mut innermost_first = self.scopes.iter().rev().filter_map(|s| s.blocks.as_ref());
        innermost_first.find_map(|blocks| blocks.get(name)).cloned()
    }
}
