//! Parser: expressions.
//!
//! Precedence from low to high: `?:`; `and or`; `== !=`; `< <= > >=`; `+ -`; `* / %`; signs. `!`
//! applies to a whole comparison, so `!a == b` is `!(a == b)`.

use super::ast::{Arguments, Expr, ExprKind, Operator, Step};
use super::operand::Item;
use super::parser::{Parsed, Parser};
use super::token::{Keyword, Kind, Token};
use crate::CallError;
use crate::literal::{self, Number};
use ccm_value::quote::quote;

impl Parser {
    pub(super) fn expression(&mut self, context: &'static str) -> Parsed<Expr> {
        self.nested(|parser| parser.ternary(context))
    }

    fn ternary(&mut self, context: &'static str) -> Parsed<Expr> {
        let test = self.binary(1, context)?;
        if self.peek().kind != Kind::Question {
            return Ok(test);
        }
        self.advance();
        let then = self.expression(context)?;
        let colon = "colon in ternary expression";
        self.expect(Kind::Colon, "ternary expression", colon)?;
        let otherwise = self.expression(context)?;
        Ok(Expr {
            span: test.span.to(otherwise.span),
            kind: ExprKind::Ternary(Box::new([test, then, otherwise])),
        })
    }

    /// Parses operators with a precedence of at least `floor`.
    fn binary(&mut self, floor: u8, context: &'static str) -> Parsed<Expr> {
        let mut left = self.unary(context)?;
        // Precedence of the operators in `left`, if more of them can be appended.
        let mut grown = None;
        while let Some(operator) = operator(self.peek().kind) {
            let precedence = operator.precedence();
            if precedence < floor {
                break;
            }
            self.advance();
            let right = self.nested(|parser| parser.binary(precedence + 1, context))?;
            let span = left.span.to(right.span);
            left = match left.kind {
                ExprKind::Binary { first, mut rest } if grown == Some(precedence) => {
                    rest.push((operator, right));
                    Expr {
                        span,
                        kind: ExprKind::Binary { first, rest },
                    }
                }
                kind => Expr {
                    span,
                    kind: ExprKind::Binary {
                        first: Box::new(Expr {
                            span: left.span,
                            kind,
                        }),
                        rest: vec![(operator, right)],
                    },
                },
            };
            grown = Some(precedence);
        }
        Ok(left)
    }

    fn unary(&mut self, context: &'static str) -> Parsed<Expr> {
        let token = self.peek();
        match token.kind {
            Kind::Not => {
                self.advance();
                let comparison = Operator::Equal.precedence();
                let operand = self.nested(|parser| parser.binary(comparison, context))?;
                Ok(Expr {
                    span: token.span.to(operand.span),
                    kind: ExprKind::Not(Box::new(operand)),
                })
            }
            Kind::Add | Kind::Subtract => {
                self.advance();
                let operand = self.operand("additive expression")?;
                Ok(Expr {
                    span: token.span.to(operand.span),
                    kind: ExprKind::Sign {
                        minus: token.kind == Kind::Subtract,
                        operand: Box::new(operand),
                    },
                })
            }
            _ => self.operand(context),
        }
    }

    /// Parses a term and the fields, indexes and calls that follow it.
    fn operand(&mut self, context: &'static str) -> Parsed<Expr> {
        let mut base = self.term(context)?;
        let mut steps = Vec::new();
        loop {
            let token = self.peek();
            if token.kind == Kind::Field && !token.spaced {
                if matches!(base.kind, ExprKind::Literal(_)) {
                    let text = self.source.quote(base.span);
                    let message = format!("unexpected . after term {}", quote(&text));
                    return Err(self.error(token.span, message));
                }
                // White space may precede a dot within a chain of fields.
                while self.peek().kind == Kind::Field {
                    let token = self.advance();
                    let name = self.name(token);
                    match &mut base.kind {
                        ExprKind::ContextFields(fields) if steps.is_empty() => fields.push(name),
                        _ => steps.push(Step::Field(name)),
                    }
                    base.span = base.span.to(token.span);
                }
                continue;
            }
            let reaches = match base.kind {
                ExprKind::Name(_)
                | ExprKind::Context
                | ExprKind::ContextFields(_)
                | ExprKind::Path { .. } => true,
                _ => !steps.is_empty(),
            };
            match token.kind {
                Kind::LeftParen if reaches => {
                    self.advance();
                    let arguments = self.arguments()?;
                    let close = "closing parenthesis";
                    let last = self.expect(Kind::RightParen, "call expression", close)?;
                    steps.push(Step::Call(arguments));
                    base.span = base.span.to(last.span);
                }
                Kind::LeftBracket if reaches => {
                    self.advance();
                    steps.push(self.index()?);
                    let close = "closing bracket";
                    let last = self.expect(Kind::RightBracket, "index expression", close)?;
                    base.span = base.span.to(last.span);
                }
                _ => break,
            }
        }
        if steps.is_empty() {
            return Ok(base);
        }
        Ok(Expr {
            span: base.span,
            kind: ExprKind::Path {
                base: Box::new(base),
                steps,
            },
        })
    }

    /// Parses an index or a slice between brackets.
    fn index(&mut self) -> Parsed<Step> {
        let mut from = None;
        if self.peek().kind != Kind::Colon {
            let index = self.expression("index|slice expression")?;
            if self.peek().kind != Kind::Colon {
                return Ok(Step::Index(index));
            }
            from = Some(index);
        }
        self.advance();
        let to = match self.peek().kind {
            Kind::RightBracket => None,
            _ => Some(self.expression("slice expression")?),
        };
        Ok(Step::Slice(from, to))
    }

    /// Parses arguments up to a closing parenthesis or the end of the list; a trailing comma is
    /// allowed.
    pub(super) fn arguments(&mut self) -> Parsed<Arguments> {
        let mut arguments = Arguments::default();
        while self.peek().kind != Kind::RightParen {
            let argument = self.expression("call expression argument list")?;
            if matches!(argument.kind, ExprKind::Slot) {
                if arguments.has_slot {
                    return Err(self.error(
                        argument.span,
                        "found two pipe slot markers ('_') for the same function call",
                    ));
                }
                arguments.has_slot = true;
            }
            arguments.list.push(argument);
            if self.peek().kind != Kind::Comma {
                break;
            }
            self.advance();
        }
        Ok(arguments)
    }

    fn term(&mut self, context: &'static str) -> Parsed<Expr> {
        let token = self.peek();
        let kind = match token.kind {
            Kind::Error => {
                let cause = self.lexing_error.clone().map(CallError::new);
                return Err(self.error(token.span, cause.unwrap_or_else(|| "".into())));
            }
            Kind::LeftParen => return self.parenthesized(),
            Kind::Dot => ExprKind::Context,
            Kind::Name => ExprKind::Name(self.name(token)),
            Kind::Field => ExprKind::ContextFields(vec![self.name(token)]),
            Kind::Underscore => ExprKind::Slot,
            Kind::Keyword(Keyword::Nil) => ExprKind::Literal(Item::Missing),
            Kind::Bool => {
                let value = self.source.slice(token.span) == b"true";
                ExprKind::Literal(Item::Data(value.into()))
            }
            Kind::Number | Kind::Character | Kind::Quoted | Kind::Raw => self.literal(token)?,
            _ => return Err(self.unexpected(token, context, "term")),
        };
        self.advance();
        Ok(Expr {
            span: token.span,
            kind,
        })
    }

    fn parenthesized(&mut self) -> Parsed<Expr> {
        const CONTEXT: &str = "parenthesized expression";
        let open = self.advance();
        let inner = self.expression(CONTEXT)?;
        let close = self.expect(Kind::RightParen, CONTEXT, "closing parenthesis")?;
        // A literal in parentheses stays a literal; any other expression keeps its kind.
        Ok(Expr {
            span: open.span.to(close.span),
            kind: inner.kind,
        })
    }

    fn literal(&self, token: Token) -> Parsed<ExprKind> {
        let text = self.source.slice(token.span);
        // All numeric literals are floats; large ones lose digits.
        let float = |value: f64| Item::Data(value.into());
        let item = match token.kind {
            Kind::Number => literal::number(&String::from_utf8_lossy(text)).map(|number| {
                float(match number {
                    Number::Int(value) => value as f64,
                    Number::Uint(value) => value as f64,
                    Number::Float(value) => value,
                })
            }),
            Kind::Character => literal::character(text).map(|code| float(code.into())),
            Kind::Raw => literal::raw(text).map(Item::from_bytes),
            _ => literal::quoted(text).map(Item::from_bytes),
        };
        match item {
            Ok(item) => Ok(ExprKind::Literal(item)),
            Err(message) => Err(self.error(token.span, message)),
        }
    }
}

fn operator(kind: Kind) -> Option<Operator> {
    Some(match kind {
        Kind::And => Operator::And,
        Kind::Or => Operator::Or,
        Kind::Equal => Operator::Equal,
        Kind::NotEqual => Operator::NotEqual,
        Kind::Less => Operator::Less,
        Kind::LessEqual => Operator::LessEqual,
        Kind::Greater => Operator::Greater,
        Kind::GreaterEqual => Operator::GreaterEqual,
        Kind::Add => Operator::Add,
        Kind::Subtract => Operator::Subtract,
        Kind::Multiply => Operator::Multiply,
        Kind::Divide => Operator::Divide,
        Kind::Modulo => Operator::Modulo,
        _ => return None,
    })
}
