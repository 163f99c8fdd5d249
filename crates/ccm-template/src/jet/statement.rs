//! Parser: statements, from the first keyword of an action.

use std::sync::Arc;

use super::ast::{
    Assign, Binding, Block, Branch, Catch, Command, Expr, ExprKind, Node, Parameter, Pipeline,
    Range, Step, Target, TargetKind, Yield,
};
use super::error::Span;
use super::parser::{Parsed, Parser, Part};
use super::token::{Keyword, Kind};

impl Parser {
    pub(super) fn if_statement(&mut self) -> Parsed<Node> {
        let mut branches = Vec::new();
        loop {
            let (assign, test) = match self.assignment_or_expression("if")? {
                Statement::Expr(test) => (None, test),
                Statement::Assign(assign) => {
                    let what = "semicolon between assignment and expression";
                    self.expect(Kind::Semicolon, "if", what)?;
                    (Some(assign), self.expression("if")?)
                }
            };
            self.right_delimiter("if")?;
            let (body, stop) =
                self.body(|part| matches!(part, Part::End | Part::Else | Part::ElseIf))?;
            branches.push(Branch { assign, test, body });
            let otherwise = match stop {
                Part::ElseIf => {
                    self.advance();
                    continue;
                }
                Part::Else => Some(self.body_to_end()?),
                _ => None,
            };
            return Ok(Node::If {
                branches,
                otherwise,
            });
        }
    }

    pub(super) fn range_statement(&mut self) -> Parsed<Node> {
        let (over, binding) = match self.assignment_or_expression("range")? {
            Statement::Expr(over) => (over, None),
            Statement::Assign(assign) => self.binding(assign)?,
        };
        self.right_delimiter("range")?;
        let (body, stop) = self.body(|part| matches!(part, Part::End | Part::Else))?;
        let otherwise = match stop {
            Part::Else => Some(self.body_to_end()?),
            _ => None,
        };
        Ok(Node::Range(Box::new(Range {
            over,
            binding,
            body,
            otherwise,
        })))
    }

    fn binding(&self, assign: Assign) -> Parsed<(Expr, Option<Binding>)> {
        let declare = assign.declare;
        let mut targets = assign.targets.into_iter();
        let mut values = assign.values.into_iter();
        match (targets.next(), targets.next(), values.next()) {
            (Some(key), value, Some(over)) if targets.next().is_none() => Ok((
                over,
                Some(Binding {
                    declare,
                    key,
                    value,
                }),
            )),
            _ => Err(self.error_here("unexpected number of operands in assign on range")),
        }
    }

    pub(super) fn try_statement(&mut self) -> Parsed<Node> {
        self.right_delimiter("try")?;
        let (body, stop) = self.body(|part| matches!(part, Part::End | Part::Catch(_)))?;
        let catch = match stop {
            Part::Catch(name) => Some(Catch {
                name,
                body: self.body_to_end()?,
            }),
            _ => None,
        };
        Ok(Node::Try { body, catch })
    }

    /// Parses the rest of `catch`, which ends the body of a try.
    pub(super) fn catch(&mut self) -> Parsed<Part> {
        let token = self.peek();
        let name = match token.kind {
            Kind::RightDelimiter => None,
            Kind::Name => {
                self.advance();
                Some(self.name(token))
            }
            _ => return Err(self.unexpected(token, "catch", "name or closing delimiter")),
        };
        self.right_delimiter("catch")?;
        Ok(Part::Catch(name))
    }

    pub(super) fn block_statement(&mut self, start: Span) -> Parsed<Node> {
        const CONTEXT: &str = "block clause";
        let name = self.expect(Kind::Name, CONTEXT, "name")?;
        let parameters = self.parameters(true, CONTEXT)?;
        let context = self.optional_expression(CONTEXT)?;
        self.right_delimiter(CONTEXT)?;
        let (body, stop) = self.body(|part| matches!(part, Part::End | Part::Content))?;
        let content = match stop {
            Part::Content => Some(self.body_to_end()?),
            _ => None,
        };
        let block = Arc::new(Block {
            name: self.name(name),
            span: start.to(name.span),
            source: self.source.clone(),
            parameters,
            context,
            body,
            content,
        });
        self.blocks.insert(block.name.clone(), block.clone());
        Ok(Node::Block(block))
    }

    pub(super) fn yield_statement(&mut self, start: Span) -> Parsed<Node> {
        const CONTEXT: &str = "yield clause";
        let name = self.advance();
        if name.kind == Kind::Keyword(Keyword::Content) {
            let context = self.optional_expression(CONTEXT)?;
            self.right_delimiter(CONTEXT)?;
            return Ok(Node::Content(context));
        }
        if name.kind != Kind::Name {
            return Err(self.unexpected(name, CONTEXT, "block name"));
        }
        let parameters = self.parameters(false, CONTEXT)?;
        let context = match self.peek().kind {
            Kind::Keyword(Keyword::Content) => None,
            _ => self.optional_expression("yield")?,
        };
        let token = self.advance();
        let content = match token.kind {
            Kind::RightDelimiter => None,
            Kind::Keyword(Keyword::Content) => {
                self.right_delimiter(CONTEXT)?;
                Some(self.body_to_end()?)
            }
            _ => {
                let expected = "content keyword or closing delimiter";
                return Err(self.unexpected(token, CONTEXT, expected));
            }
        };
        Ok(Node::Yield(Box::new(Yield {
            name: self.name(name),
            span: start.to(name.span),
            parameters,
            context,
            content,
        })))
    }

    /// Parses `(a, b = 1)`. Only a yield may have values without a name.
    fn parameters(&mut self, declaring: bool, context: &'static str) -> Parsed<Vec<Parameter>> {
        let mut list = Vec::new();
        self.expect(Kind::LeftParen, context, "opening parenthesis")?;
        loop {
            let (token, second) = (self.peek(), self.peek_second());
            let named = token.kind == Kind::Name;
            match second.kind {
                _ if token.kind == Kind::RightParen => break,
                Kind::Comma | Kind::RightParen if named => {
                    self.advance();
                    list.push(Parameter {
                        name: Some(self.name(token)),
                        value: None,
                    });
                }
                Kind::Assign | Kind::Declare if named => {
                    self.advance();
                    self.advance();
                    list.push(Parameter {
                        name: Some(self.name(token)),
                        value: Some(self.expression(context)?),
                    });
                }
                _ if !declaring => list.push(Parameter {
                    name: None,
                    value: Some(self.expression(context)?),
                }),
                _ if named => {
                    let expected = "comma, assignment, or closing parenthesis";
                    return Err(self.unexpected(second, context, expected));
                }
                _ => break,
            }
            if self.peek().kind != Kind::Comma {
                break;
            }
            self.advance();
        }
        self.expect(Kind::RightParen, context, "closing parenthesis")?;
        Ok(list)
    }

    pub(super) fn include_statement(&mut self) -> Parsed<Node> {
        let name = self.expression("include")?;
        let context = self.optional_expression("include")?;
        self.right_delimiter("include invocation")?;
        Ok(Node::Include { name, context })
    }

    /// Parses an action without a keyword: an assignment, a pipeline, or both.
    pub(super) fn command_action(&mut self) -> Parsed<Node> {
        let (assign, base) = match self.assignment_or_expression("command")? {
            Statement::Expr(base) => (None, base),
            Statement::Assign(assign) => {
                let assign = Some(Box::new(assign));
                let token = self.advance();
                match token.kind {
                    Kind::Semicolon => (assign, self.expression("command")?),
                    Kind::RightDelimiter => {
                        return Ok(Node::Action {
                            assign,
                            pipeline: None,
                        });
                    }
                    _ => {
                        let expected = "semicolon or right delimiter";
                        return Err(self.unexpected(token, "command", expected));
                    }
                }
            }
        };
        let first = self.command(base)?;
        let mut rest = Vec::new();
        loop {
            let token = self.advance();
            match token.kind {
                Kind::RightDelimiter => break,
                Kind::Pipe => {}
                _ => {
                    return Err(self.unexpected(token, "pipeline", "pipe or right delimiter"));
                }
            }
            let token = self.peek();
            if !matches!(token.kind, Kind::Field | Kind::Name) {
                return Err(self.unexpected(token, "pipeline", "field or identifier"));
            }
            let base = self.expression("command")?;
            rest.push(self.command(base)?);
        }
        Ok(Node::Action {
            assign,
            pipeline: Some(Pipeline { first, rest }),
        })
    }

    /// Parses a stage of a pipeline: `f(x)` and `f: x` are calls of `f`.
    fn command(&mut self, base: Expr) -> Parsed<Command> {
        let Expr { span, kind } = base;
        let kind = match kind {
            ExprKind::Path { base, mut steps } => match steps.pop() {
                Some(Step::Call(arguments)) => {
                    let base = if steps.is_empty() {
                        *base
                    } else {
                        let kind = ExprKind::Path { base, steps };
                        Expr { span, kind }
                    };
                    return Ok(Command {
                        base,
                        arguments: Some(arguments),
                    });
                }
                last => {
                    steps.extend(last);
                    ExprKind::Path { base, steps }
                }
            },
            kind => kind,
        };
        let arguments = match self.peek().kind {
            Kind::Colon => {
                self.advance();
                Some(self.arguments()?)
            }
            _ => None,
        };
        Ok(Command {
            base: Expr { span, kind },
            arguments,
        })
    }

    fn assignment_or_expression(&mut self, context: &'static str) -> Parsed<Statement> {
        let first = self.expression(context)?;
        if !matches!(self.peek().kind, Kind::Comma | Kind::Assign | Kind::Declare) {
            return Ok(Statement::Expr(first));
        }
        let mut targets = vec![self.target(first)?];
        let declare = loop {
            let token = self.advance();
            match token.kind {
                Kind::Comma => {
                    let next = self.expression(context)?;
                    targets.push(self.target(next)?);
                }
                Kind::Assign => break false,
                Kind::Declare => break true,
                _ => return Err(self.unexpected(token, "assignment", "comma or assignment")),
            }
        };
        if declare {
            for target in &targets {
                if matches!(target.kind, TargetKind::Field { .. }) {
                    let text = self.source.quote(target.span);
                    let message = format!("unexpected node type {text} in variable declaration");
                    return Err(self.error(target.span, message));
                }
            }
        }
        let mut values = vec![self.expression("assignment")?];
        while self.peek().kind == Kind::Comma {
            self.advance();
            values.push(self.expression("assignment")?);
        }
        let two_from_index =
            targets.len() == 2 && matches!(values.as_slice(), [value] if is_index(value));
        let fits = if context == "range" {
            targets.len() <= 2 && values.len() == 1
        } else {
            targets.len() == values.len() || two_from_index
        };
        if !fits {
            return Err(self.error_here("unexpected number of operands in assign on range"));
        }
        Ok(Statement::Assign(Assign {
            declare,
            targets,
            values,
        }))
    }

    /// Converts an expression to the target of an assignment.
    fn target(&self, expr: Expr) -> Parsed<Target> {
        let span = expr.span;
        let refuse = || self.error(span, "unexpected node in assign");
        let field = |variable, mut steps: Vec<Step>| {
            let reaches = |step: &Step| matches!(step, Step::Field(_) | Step::Index(_));
            match steps.pop() {
                Some(Step::Field(last)) if steps.iter().all(reaches) => Ok(TargetKind::Field {
                    variable,
                    steps,
                    last,
                }),
                _ => Err(refuse()),
            }
        };
        let kind = match expr.kind {
            ExprKind::Slot => TargetKind::Discard,
            ExprKind::Name(name) => TargetKind::Variable(name),
            ExprKind::ContextFields(fields) => {
                field(None, fields.into_iter().map(Step::Field).collect())?
            }
            ExprKind::Path { base, steps } => match base.kind {
                ExprKind::Name(name) => field(Some(name), steps)?,
                ExprKind::Context => field(None, steps)?,
                ExprKind::ContextFields(fields) => {
                    let fields = fields.into_iter().map(Step::Field);
                    field(None, fields.chain(steps).collect())?
                }
                _ => return Err(refuse()),
            },
            _ => return Err(refuse()),
        };
        Ok(Target { span, kind })
    }

    /// Parses an expression unless the action ends here.
    fn optional_expression(&mut self, context: &'static str) -> Parsed<Option<Expr>> {
        match self.peek().kind {
            Kind::RightDelimiter => Ok(None),
            _ => self.expression(context).map(Some),
        }
    }
}

enum Statement {
    Expr(Expr),
    Assign(Assign),
}

fn is_index(expr: &Expr) -> bool {
    match &expr.kind {
        ExprKind::Path { steps, .. } => matches!(steps.last(), Some(Step::Index(_))),
        _ => false,
    }
}
