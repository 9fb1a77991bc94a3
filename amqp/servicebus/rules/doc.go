// Package rules decides which messages a subscription of a topic takes, and what is changed of its copies: filters and
// actions in the service's subset of SQL-92, correlation filters, and sets of them that find what matches.
//
// It promises that a message costs little, whatever a rule says: texts are bounded in length and depth, and what is
// evaluated in steps, without a clock. The result depends on the rule and the message alone, but for newid(). A filter
// that cannot be evaluated for a message (division by zero, types that do not fit) fails with an error, which is neither
// a match nor none. Nothing is allocated to evaluate a filter that makes no text.
//
// It does not know how rules are kept or what a subscription is: a set finds what its owner has put there.
//
// It is another language than that of package selector, with errors, types of the service, parameters, names without
// case, and texts as they lie in the message; so they share the idea, and no code.
package rules
