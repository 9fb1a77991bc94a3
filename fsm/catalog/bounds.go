package catalog

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Values that name an exchange or a message's property, or are a routing key,
// cannot be longer than a short string. Proposers refuse such values, see Admit.
// Apply does not: the log may hold declares and policies that never were checked
// so, and what they made must still be there after a replay. Whoever uses the
// value of a record takes fsm.Short of it.

// The arguments of queues and of exchanges that are short strings, and the keys
// of policies.
var (
	shortInQueues    = []string{deadLetterExchange, deadLetterRoutingKey, forwardArgument, "x-forward-to-routing-key"}
	shortInExchanges = []string{alternateExchange, deadLetterExchange, deadLetterRoutingKey, hashHeader}
	shortInPolicies  = []string{"dead-letter-exchange", "dead-letter-routing-key", "alternate-exchange", "forward-to-exchange", "forward-to-routing-key"}
)

// Admit says why a command must not enter the log, although Apply might perform
// it; nil: it may. The leader asks for every command, whoever proposes it. It
// depends on the command alone. Records from the log may still hold longer
// names.
func Admit(c *logpb.CatalogCommand) error {
	switch m := c.GetBody().(type) {
	case nil:
		return refuse(fsm.Internal, "unknown catalog command")
	case *logpb.CatalogCommand_RecoverCluster:
		return refuse(fsm.Internal, "a cluster is recovered from the log of one node, not by a proposal")
	case *logpb.CatalogCommand_DeclareQueue:
		return checkShort(resource(kindQueue, m.DeclareQueue.GetVhost(), m.DeclareQueue.GetName()), m.DeclareQueue.GetArguments(), shortInQueues)
	case *logpb.CatalogCommand_DeclareExchange:
		return checkShort(resource(kindExchange, m.DeclareExchange.GetVhost(), m.DeclareExchange.GetName()), m.DeclareExchange.GetArguments(), shortInExchanges)
	case *logpb.CatalogCommand_PutPolicy:
		return checkShortKeys(m.PutPolicy.GetDefinition())
	}
	return nil
}

// checkShort refuses the named arguments if they are no short strings.
func checkShort(where string, args *fsm.Table, names []string) error {
	for _, name := range names {
		if s, _ := text(lookup(args, name)); len(s) > fsm.MaxShort {
			return invalidArgument(name, where, fmt.Sprintf("{value_too_long,%d}", len(s)))
		}
	}
	return nil
}

// checkShortKeys is checkShort for a policy.
func checkShortKeys(definition *fsm.Table) error {
	for _, name := range shortInPolicies {
		if s, _ := text(lookup(definition, name)); len(s) > fsm.MaxShort {
			return refuse(fsm.Precondition, "%s may have at most %d bytes, not %d", name, fsm.MaxShort, len(s))
		}
	}
	return nil
}
