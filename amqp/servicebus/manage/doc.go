// Package manage answers the management requests of programs for Azure Service Bus:
// entries and feeds of Atom over HTTP, by which entities are created, changed, listed
// and deleted.
//
// A request needs a token of a rule with the right to manage, see package sas. Any
// node answers, and what is answered is so at all nodes. The package keeps nothing:
// descriptions, rules and keys are in the cluster's table of definitions.
package manage
