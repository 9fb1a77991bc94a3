// Package clients runs client libraries of other languages against a cluster
// of three real nodes. Each has a program in testdata that takes the same
// steps; what a step is about, docs/evidence/clients.md says.
package clients
