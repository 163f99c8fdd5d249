//! Parser: turns tokens into a tree by precedence climbing.
//!
//! Knows only the grammar, not kinds or values. Refuses expressions that are too large or too deep,
//! so that checker and evaluator need no such limits. This file has the operators and statements;
//! operands are in `operand`.

mod operand;

use super::ast::{Binary, Id, NodeKind, Tree, Unary};
use super::error::Fault;
use super::lexer::{Lexer, Token, TokenKind};

/// Maximum number of nodes of an expression.
const MAX_NODES: usize = 10_000;

/// Maximum nesting of an expression; each level uses stack in the parser and the evaluator.
pub(super) const MAX_DEPTH: u16 = 100;

/// Parses an expression. `overridden` returns whether the caller redefines a built-in name.
pub(super) fn parse(code: &str, overridden: &dyn Fn(&str) -> bool) -> Result<Tree, Fault> {
    let mut lexer = Lexer::new(code);
    let current = lexer.token()?;
    let mut parser = Parser {
        lexer,
        current,
        stashed: None,
        tree: Tree::new(),
        overridden,
        predicates: 0,
        depth: 0,
    };
    let root = parser.sequence()?;
    if parser.current.kind != TokenKind::End {
        return Err(parser.unexpected());
    }
    parser.tree.root = root;
    Ok(parser.tree)
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    current: Token<'a>,
    /// A token read ahead, when `not` turned out to belong to an outer operator.
    stashed: Option<Token<'a>>,
    tree: Tree,
    overridden: &'a dyn Fn(&str) -> bool,
    /// Number of predicates around the current token; `#` and `.x` are valid only inside one.
    predicates: usize,
    depth: u16,
}

/// Returns a binary operator and its precedence.
fn binary(text: &str) -> Option<(Binary, u16)> {
    Some(match text {
        "or" | "||" => (Binary::Or, 10),
        "and" | "&&" => (Binary::And, 15),
        "==" => (Binary::Equal, 20),
        "!=" => (Binary::NotEqual, 20),
        "<" => (Binary::Less, 20),
        ">" => (Binary::More, 20),
        ">=" => (Binary::MoreOrEqual, 20),
        "<=" => (Binary::LessOrEqual, 20),
        "in" => (Binary::In, 20),
        "matches" => (Binary::Matches, 20),
        "contains" => (Binary::Contains, 20),
        "startsWith" => (Binary::StartsWith, 20),
        "endsWith" => (Binary::EndsWith, 20),
        ".." => (Binary::Range, 25),
        "+" => (Binary::Add, 30),
        "-" => (Binary::Subtract, 30),
        "*" => (Binary::Multiply, 60),
        "/" => (Binary::Divide, 60),
        "%" => (Binary::Modulo, 60),
        "**" | "^" => (Binary::Power, 100),
        "??" => (Binary::Coalesce, 500),
        _ => return None,
    })
}

fn unary(text: &str) -> Option<(Unary, u16)> {
    Some(match text {
        "not" | "!" => (Unary::Not, 50),
        "-" => (Unary::Minus, 90),
        "+" => (Unary::Plus, 90),
        _ => return None,
    })
}

/// Returns whether `not` may precede this operator.
fn may_be_negated(text: &str) -> bool {
    matches!(
        text,
        "contains" | "matches" | "startsWith" | "endsWith" | "in"
    )
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Result<Token<'a>, Fault> {
        let token = match self.stashed.take() {
            Some(token) => token,
            None => self.lexer.token()?,
        };
        Ok(std::mem::replace(&mut self.current, token))
    }

    fn unexpected(&self) -> Fault {
        Fault::at(
            self.current.at,
            format!("unexpected token {}", self.current),
        )
    }

    fn expect_operator(&mut self, text: &str) -> Result<(), Fault> {
        if !self.current.is_operator(text) {
            return Err(self.unexpected());
        }
        self.next().map(drop)
    }

    fn expect_bracket(&mut self, text: &str) -> Result<(), Fault> {
        if !self.current.is_bracket(text) {
            return Err(self.unexpected());
        }
        self.next().map(drop)
    }

    fn expect_name(&mut self) -> Result<(&'a str, usize), Fault> {
        match self.current.kind {
            TokenKind::Name(name) => Ok((name, self.next()?.at)),
            _ => Err(self.unexpected()),
        }
    }

    fn push(&mut self, kind: NodeKind, at: usize) -> Result<Id, Fault> {
        if self.tree.len() >= MAX_NODES {
            return Err(Fault::at(
                self.current.at,
                "compilation failed: expression exceeds maximum allowed nodes",
            ));
        }
        let (id, depth) = self.tree.push(kind, at);
        if depth > MAX_DEPTH {
            return Err(self.too_deep());
        }
        Ok(id)
    }

    fn too_deep(&self) -> Fault {
        Fault::at(
            self.current.at,
            format!("expression nests deeper than {MAX_DEPTH} levels"),
        )
    }

    /// Runs `inner` one nesting level deeper.
    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<T, Fault> {
        if self.depth >= MAX_DEPTH {
            return Err(self.too_deep());
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    fn sequence(&mut self) -> Result<Id, Fault> {
        let at = self.current.at;
        let mut nodes = vec![self.expression(0)?];
        while self.current.is_operator(";") {
            self.next()?;
            if self.current.kind == TokenKind::End {
                break;
            }
            nodes.push(self.expression(0)?);
        }
        match nodes.as_slice() {
            [only] => Ok(*only),
            _ => self.push(NodeKind::Sequence(nodes), at),
        }
    }

    /// Parses operators with a precedence of at least `floor`.
    fn expression(&mut self, floor: u16) -> Result<Id, Fault> {
        self.nested(|parser| parser.expression_inside(floor))
    }

    fn expression_inside(&mut self, floor: u16) -> Result<Id, Fault> {
        if floor == 0 && self.current.is_operator("let") {
            return self.declaration();
        }
        if floor == 0 && self.current.is_operator("if") {
            return self.conditional();
        }
        let mut left = self.primary()?;
        let mut previous = "";
        while let TokenKind::Operator(mut operator) = self.current.kind {
            let mut at = self.current.at;
            let mut negated = false;
            if operator == "not" {
                let not = self.next()?;
                let TokenKind::Operator(suffix) = self.current.kind else {
                    return Err(self.unexpected());
                };
                if !may_be_negated(suffix) {
                    return Err(self.unexpected());
                }
                if binary(suffix).is_none_or(|(_, binds)| binds < floor) {
                    self.stashed = Some(std::mem::replace(&mut self.current, not));
                    break;
                }
                operator = suffix;
                at = self.current.at;
                negated = true;
            }
            if operator == "|" {
                if floor > 0 {
                    break;
                }
                self.next()?;
                let (name, at) = self.expect_name()?;
                left = self.call(name, at, vec![left], true)?;
                previous = operator;
                continue;
            }
            let Some((op, binds)) = binary(operator).filter(|(_, binds)| *binds >= floor) else {
                break;
            };
            if previous == "??" && operator != "??" {
                return Err(Fault::at(
                    at,
                    format!(
                        "Operator ({operator}) and coalesce expressions (??) cannot be mixed. Wrap either by parentheses."
                    ),
                ));
            }
            self.next()?;
            if op.is_comparison() {
                left = self.comparison(left, op, at)?;
            } else {
                // `**` is right-associative, all others are left-associative.
                let floor = if op == Binary::Power {
                    binds
                } else {
                    binds + 1
                };
                let right = self.expression(floor)?;
                left = self.push(NodeKind::Binary { op, left, right }, at)?;
                if negated {
                    let op = Unary::Not;
                    left = self.push(NodeKind::Unary { op, node: left }, at)?;
                }
            }
            previous = operator;
        }
        if floor == 0 {
            left = self.ternary(left)?;
        }
        Ok(left)
    }

    /// Parses `a < b < c` as `a < b && b < c`.
    fn comparison(&mut self, mut left: Id, mut op: Binary, mut at: usize) -> Result<Id, Fault> {
        let mut root = None;
        loop {
            let right = self.expression(21)?;
            let pair = self.push(NodeKind::Binary { op, left, right }, at)?;
            let whole = match root {
                None => pair,
                Some(left) => {
                    let op = Binary::And;
                    let right = pair;
                    self.push(NodeKind::Binary { op, left, right }, at)?
                }
            };
            let next = match self.current.kind {
                TokenKind::Operator(text) => binary(text).filter(|(op, _)| op.is_comparison()),
                _ => None,
            };
            let Some((following, _)) = next else {
                return Ok(whole);
            };
            root = Some(whole);
            left = right;
            op = following;
            at = self.next()?.at;
        }
    }

    fn declaration(&mut self) -> Result<Id, Fault> {
        self.expect_operator("let")?;
        let (name, at) = self.expect_name()?;
        let name = name.into();
        self.expect_operator("=")?;
        let value = self.expression(0)?;
        self.expect_operator(";")?;
        let body = self.sequence()?;
        self.push(NodeKind::Let { name, value, body }, at)
    }

    fn conditional(&mut self) -> Result<Id, Fault> {
        let at = self.next()?.at;
        let condition = self.expression(0)?;
        let then = self.block()?;
        self.expect_operator("else")?;
        let otherwise = if self.current.is_operator("if") {
            self.nested(Self::conditional)?
        } else {
            self.block()?
        };
        let kind = NodeKind::If {
            condition,
            then,
            otherwise,
        };
        self.push(kind, at)
    }

    fn block(&mut self) -> Result<Id, Fault> {
        self.expect_bracket("{")?;
        let inner = self.sequence()?;
        self.expect_bracket("}")?;
        Ok(inner)
    }

    fn ternary(&mut self, mut condition: Id) -> Result<Id, Fault> {
        while self.current.is_operator("?") {
            self.next()?;
            let then = if self.current.is_operator(":") {
                condition
            } else {
                self.expression(0)?
            };
            self.expect_operator(":")?;
            let otherwise = self.expression(0)?;
            let kind = NodeKind::If {
                condition,
                then,
                otherwise,
            };
            condition = self.push(kind, self.current.at)?;
        }
        Ok(condition)
    }
}
