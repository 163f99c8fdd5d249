//! Parser for operands: literals, names, calls, and the members and slices that follow them.

use super::{Parser, unary};
use crate::expr::ast::{Id, LoopBuiltin, NodeKind};
use crate::expr::builtins;
use crate::expr::error::Fault;
use crate::expr::lexer::{Text, TokenKind, is_word};
use ccm_value::quote::quote;

impl Parser<'_> {
    pub(super) fn primary(&mut self) -> Result<Id, Fault> {
        let at = self.current.at;
        match self.current.kind {
            TokenKind::Operator(text) => {
                if let Some((op, binds)) = unary(text) {
                    self.next()?;
                    let node = self.expression(binds)?;
                    let node = self.push(NodeKind::Unary { op, node }, at)?;
                    return self.postfix(node);
                }
                if self.predicates > 0 && (text == "#" || text == ".") {
                    return self.pointer(text);
                }
                if text == "::" {
                    self.next()?;
                    let (name, at) = self.expect_name()?;
                    let call = self.call(name, at, Vec::new(), false)?;
                    return self.postfix(call);
                }
                Err(self.unexpected())
            }
            TokenKind::Bracket("(") => {
                self.next()?;
                let inner = self.sequence()?;
                self.expect_bracket(")")?;
                self.postfix(inner)
            }
            _ => self.secondary(),
        }
    }

    /// Parses `#`, `#index`, `#acc`, and the implicit item of `.field`.
    fn pointer(&mut self, text: &str) -> Result<Id, Fault> {
        let at = self.current.at;
        let mut name = "";
        if text == "#" {
            self.next()?;
            if let TokenKind::Name(found) = self.current.kind {
                name = found;
                self.next()?;
            }
        }
        let node = self.push(NodeKind::Pointer(name.into()), at)?;
        self.postfix(node)
    }

    fn secondary(&mut self) -> Result<Id, Fault> {
        let at = self.current.at;
        let node = match &self.current.kind {
            TokenKind::Name(name) => {
                let name = *name;
                self.next()?;
                let kind = match name {
                    "true" => NodeKind::Bool(true),
                    "false" => NodeKind::Bool(false),
                    "nil" => NodeKind::Nil,
                    _ if self.current.is_bracket("(") => {
                        let call = self.call(name, at, Vec::new(), true)?;
                        return self.postfix(call);
                    }
                    _ => {
                        let node = self.push(NodeKind::Name(name.into()), at)?;
                        return self.postfix(node);
                    }
                };
                return self.push(kind, at);
            }
            TokenKind::Number(text) => {
                let text = *text;
                self.next()?;
                let kind = self.number(text)?;
                return self.push(kind, at);
            }
            TokenKind::Text(text) => {
                let text: Text = text.as_ref().into();
                self.next()?;
                self.push(NodeKind::Text(text), at)?
            }
            TokenKind::Bracket("[") => self.list(at)?,
            TokenKind::Bracket("{") => self.map(at)?,
            _ => return Err(self.unexpected()),
        };
        self.postfix(node)
    }

    fn number(&self, text: &str) -> Result<NodeKind, Fault> {
        let plain = text.replace('_', "");
        let lower = plain.to_ascii_lowercase();
        let wrong = |what: &str, reason: &str| {
            Fault::at(
                self.current.at,
                format!("invalid {what} literal: {}: {reason}", quote(&plain)),
            )
        };
        let whole = |what, digits: &str, radix| {
            i64::from_str_radix(digits, radix)
                .map(NodeKind::Int)
                .map_err(|err| wrong(what, &err.to_string()))
        };
        if let Some(digits) = lower.strip_prefix("0x") {
            return whole("hex", digits, 16);
        }
        if lower.contains(['.', 'e']) {
            return match lower.parse::<f64>() {
                Ok(number) if number.is_finite() => Ok(NodeKind::Float(number)),
                Ok(_) => Err(wrong("float", "value out of range")),
                Err(err) => Err(wrong("float", &err.to_string())),
            };
        }
        if let Some(digits) = lower.strip_prefix("0b") {
            return whole("binary", digits, 2);
        }
        if let Some(digits) = lower.strip_prefix("0o") {
            return whole("octal", digits, 8);
        }
        whole("integer", &lower, 10)
    }

    fn list(&mut self, at: usize) -> Result<Id, Fault> {
        self.expect_bracket("[")?;
        let mut items = Vec::new();
        while !self.current.is_bracket("]") {
            if !items.is_empty() {
                self.expect_operator(",")?;
                if self.current.is_bracket("]") {
                    break;
                }
            }
            items.push(self.expression(0)?);
        }
        self.expect_bracket("]")?;
        self.push(NodeKind::List(items), at)
    }

    fn map(&mut self, at: usize) -> Result<Id, Fault> {
        self.expect_bracket("{")?;
        let mut pairs = Vec::new();
        while !self.current.is_bracket("}") {
            if !pairs.is_empty() {
                self.expect_operator(",")?;
                if self.current.is_bracket("}") {
                    break;
                }
            }
            let key = self.key()?;
            self.expect_operator(":")?;
            let value = self.expression(0)?;
            pairs.push((key, value));
        }
        self.expect_bracket("}")?;
        self.push(NodeKind::Map(pairs), at)
    }

    fn key(&mut self) -> Result<Id, Fault> {
        let text: Text = match &self.current.kind {
            TokenKind::Number(text) | TokenKind::Name(text) => (*text).into(),
            TokenKind::Text(text) => text.as_ref().into(),
            TokenKind::Bracket("(") => return self.expression(0),
            _ => {
                return Err(Fault::at(
                    self.current.at,
                    format!(
                        "a map key must be a quoted string, a number, a identifier, or an expression enclosed in parentheses (unexpected token {})",
                        self.current
                    ),
                ));
            }
        };
        let at = self.next()?.at;
        self.push(NodeKind::Text(text), at)
    }

    /// Parses the arguments of a call; `arguments` already holds a piped value.
    pub(super) fn call(
        &mut self,
        name: &str,
        at: usize,
        mut arguments: Vec<Id>,
        overridable: bool,
    ) -> Result<Id, Fault> {
        let overridden = overridable && (self.overridden)(name);
        if let Some(builtin) = LoopBuiltin::named(name).filter(|_| !overridden) {
            return self.loop_builtin(builtin, at, arguments);
        }
        let builtin = builtins::named(name).filter(|_| !overridden);
        self.arguments(&mut arguments)?;
        let kind = match builtin {
            Some(builtin) => NodeKind::Builtin { builtin, arguments },
            None => NodeKind::Call {
                name: name.into(),
                arguments,
            },
        };
        self.push(kind, at)
    }

    fn arguments(&mut self, arguments: &mut Vec<Id>) -> Result<(), Fault> {
        self.expect_bracket("(")?;
        let mut first = true;
        while !self.current.is_bracket(")") {
            if !first {
                self.expect_operator(",")?;
                if self.current.is_bracket(")") {
                    break;
                }
            }
            first = false;
            arguments.push(self.expression(0)?);
        }
        self.expect_bracket(")")
    }

    fn loop_builtin(
        &mut self,
        builtin: LoopBuiltin,
        at: usize,
        piped: Vec<Id>,
    ) -> Result<Id, Fault> {
        self.expect_bracket("(")?;
        let wanted = 2 - piped.len().min(1);
        let missing = |parser: &Self| {
            Fault::at(
                parser.current.at,
                format!("expected at least {wanted} arguments"),
            )
        };
        let list = match piped.first() {
            Some(list) => *list,
            None if self.current.is_bracket(")") => return Err(missing(self)),
            None => {
                let list = self.expression(0)?;
                if self.current.is_bracket(")") {
                    if !builtin.predicate_is_optional() {
                        return Err(missing(self));
                    }
                } else {
                    self.expect_operator(",")?;
                }
                list
            }
        };
        let mut predicate = None;
        let mut extra = None;
        if !self.current.is_bracket(")") {
            predicate = Some(self.predicate()?);
            if builtin.takes_extra() && self.current.is_operator(",") {
                self.next()?;
                if !self.current.is_bracket(")") {
                    extra = Some(self.expression(0)?);
                }
            }
            if self.current.is_operator(",") {
                self.next()?;
            }
        } else if !builtin.predicate_is_optional() {
            return Err(missing(self));
        }
        self.expect_bracket(")")?;
        let kind = NodeKind::Loop {
            builtin,
            list,
            predicate,
            extra,
        };
        self.push(kind, at)
    }

    fn predicate(&mut self) -> Result<Id, Fault> {
        let at = self.current.at;
        self.predicates += 1;
        let body = if self.current.is_bracket("{") {
            self.block()
        } else {
            self.expression(0)
        };
        self.predicates -= 1;
        let body = body?;
        if self.current.is_operator(";") {
            return Err(Fault::at(
                self.current.at,
                "wrap predicate with brackets { and }",
            ));
        }
        self.push(NodeKind::Predicate(body), at)
    }

    fn postfix(&mut self, mut node: Id) -> Result<Id, Fault> {
        loop {
            match self.current.kind {
                TokenKind::Operator(text @ ("." | "?.")) => {
                    let optional = text == "?.";
                    self.next()?;
                    node = if optional && self.current.is_bracket("[") {
                        self.index(node, true)?
                    } else {
                        self.member(node, optional)?
                    };
                }
                TokenKind::Bracket("[") => node = self.index(node, false)?,
                _ => return Ok(node),
            }
        }
    }

    fn member(&mut self, node: Id, optional: bool) -> Result<Id, Fault> {
        let at = self.current.at;
        let name = match self.current.kind {
            TokenKind::Name(name) => name,
            // Reserved words are valid member names.
            TokenKind::Operator(name) if name.starts_with(is_word) => name,
            TokenKind::End => return Err(Fault::at(at, "unexpected end of expression")),
            _ => return Err(Fault::at(at, "expected name")),
        };
        self.next()?;
        // Members after `?.` belong to the same chain.
        let (node, chained) = match self.tree.node(node).kind {
            NodeKind::Chain(inner) => (inner, true),
            _ => (node, false),
        };
        let property = self.push(NodeKind::Text(name.into()), at)?;
        let method = self.current.is_bracket("(");
        let kind = NodeKind::Member {
            node,
            property,
            optional,
            method,
        };
        let mut found = self.push(kind, at)?;
        if method {
            let mut arguments = Vec::new();
            self.arguments(&mut arguments)?;
            let member = found;
            found = self.push(NodeKind::Method { member, arguments }, at)?;
        }
        if chained || optional {
            found = self.push(NodeKind::Chain(found), at)?;
        }
        Ok(found)
    }

    fn index(&mut self, node: Id, optional: bool) -> Result<Id, Fault> {
        let at = self.next()?.at;
        let from = if self.current.is_operator(":") {
            None
        } else {
            Some(self.expression(0)?)
        };
        if self.current.is_operator(":") {
            self.next()?;
            let to = if self.current.is_bracket("]") {
                None
            } else {
                Some(self.expression(0)?)
            };
            self.expect_bracket("]")?;
            return self.push(NodeKind::Slice { node, from, to }, at);
        }
        let Some(property) = from else {
            return Err(self.unexpected());
        };
        self.expect_bracket("]")?;
        let kind = NodeKind::Member {
            node,
            property,
            optional,
            method: false,
        };
        let member = self.push(kind, at)?;
        if optional {
            self.push(NodeKind::Chain(member), at)
        } else {
            Ok(member)
        }
    }
}
