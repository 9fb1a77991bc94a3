// Package route is what exchanges compute with: persistent tables, and the
// matching rules of the exchange types.
//
// Everything here is a value that never changes: an operation that adds or
// removes returns a new value, which shares what did not change with the old
// one. So any number of goroutines may match against a value while the next
// one is being made, without a lock.
//
// The package knows no queue, no exchange and no binding. What a match leads
// to is a type parameter. The traversal from exchange to exchange is the
// catalog's.
package route
