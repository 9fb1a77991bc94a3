package catalog

import (
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// GroupHeader is the header that names the group of a message, in queues that take
// it from there.
const GroupHeader = "x-group-id"

// groupsOf returns where a queue with these arguments finds the group of a message.
func groupsOf(arguments *fsm.Table) logpb.QueueConfig_Groups {
	if lookup(arguments, groupsArgument).GetInt() == 0 {
		return logpb.QueueConfig_NO_GROUPS
	}
	if source, _ := text(lookup(arguments, "x-group-source")); source == groupSources[1] {
		return logpb.QueueConfig_BY_APP_ID
	}
	return logpb.QueueConfig_BY_HEADER
}
