// Package route implements what exchanges need for routing: persistent tables,
// and the matching rules of the exchange types.
//
// Every value here is immutable: an operation that adds or removes returns a
// new value, which shares the unchanged parts with the old one. So any number
// of goroutines may match against a value without a lock while the next one is
// made.
//
// The package does not know queues, exchanges or bindings. The result of a
// match is a type parameter. The catalog traverses from exchange to exchange.
package route
