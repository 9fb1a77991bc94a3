package self

import (
	replicated "github.com/quorate/quorate/cluster/catalog"
	"github.com/quorate/quorate/cluster/group"
	"github.com/quorate/quorate/cluster/peer"
)

// Kinds of messages between nodes.
const (
	KindElection peer.Kind = 16 + iota // elections, see cluster/election
	KindCatalog                        // call: to the catalog's leader, see cluster/catalog
	KindSubmit
	KindOutcomes
	KindDeliveries
	KindNotice
	KindResync
	KindStats      // call
	KindQueueStats // call, see cluster/stats
	KindReplicas   // call: status of a node's replicas, see package cluster
	KindTransfer   // call: to take over a leadership
	KindNodes      // call: which nodes the cluster has
	KindAdmit      // call: a node asks to join, for the catalog's leader
	KindPeek       // call
	KindReply
	KindRequester       // call: whether a channel takes replies
	KindConsumers       // call, see cluster/stats
	KindConnections     // call: a node's clients, see package cluster
	KindCloseConnection // call
	KindScheduled       // call
	KindCounts          // call
	KindResourceAlarms  // which resources a node is short of, see package cluster
	KindHears           // call: whether a node hears a process of another one
	KindApplied         // what a node has applied of the catalog, see cluster/catalog
	KindLearner         // of replicas that do not vote, see cluster/election
	KindEnds            // call: messages that have ended
	KindExplain         // call: the lives of messages
	KindHash            // call: the state of a replica at an entry
	KindGroups          // call: groups of messages
	KindBackup          // call: a page of a queue's backup
	KindRestored        // call: how much of a backup a queue holds
	KindTraffic         // call: what a node's clients do, see cluster/stats
	KindChannels        // call: the channels of a node's clients, see package cluster
	KindTimeouts        // call: the last consumer timeouts, see cluster/stats
	KindSnapshot        // call: to write a snapshot of a replica, see cluster/placement
	KindCancelConsumer  // call: to cancel a consumer of a node's client, see package cluster
	KindLeads           // call: which queues a node leads
	KindTime            // call: what comes next in the queues that a node leads, see cluster/stats
	KindSessions        // call: the sessions of a connection of a node's client, see package cluster
	KindBrowse          // call: ready messages of a queue
	KindSelect          // call: which ready messages of a queue meet a condition
	KindDrifts          // call: with what a node's clients have declared otherwise, see cluster/stats
)

// bounds lists the kinds whose messages are longer than others, or never have a payload.
var bounds = map[peer.Kind]peer.Bounds{
	KindElection:       {Head: 4 << 20}, // of a hundred thousand groups
	KindLearner:        {Head: 4 << 20},
	KindCatalog:        {Head: replicated.MaxEntry + 1<<10},
	KindSubmit:         {Head: group.MaxCommandBytes + 1<<10, Payload: peer.MaxMessage},
	KindOutcomes:       {Head: 4 << 20},
	KindDeliveries:     {Head: 16 << 20, Payload: peer.MaxMessage}, // with death records
	KindNotice:         {Head: 1 << 20},
	KindResync:         {Head: 1 << 10},
	KindLeads:          {Head: 4 << 20},
	KindReply:          {Payload: peer.MaxMessage},
	KindResourceAlarms: {Head: 1 << 10},
	KindApplied:        {Head: 1 << 10},
	KindEnds:           {Head: 4 << 20},
	KindExplain:        {Head: 16 << 20},
	KindGroups:         {Head: 4 << 20},
	KindBackup:         {Head: 16 << 20}, // records with death histories
	KindDrifts:         {Head: 4 << 20},
}
