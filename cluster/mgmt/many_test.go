package mgmt

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

// The export of as many queues as there may be by default can be imported.
func TestManyDefinitions(t *testing.T) {
	const some = 500
	w := newWorld(t)
	size := func() int { return w.request("root", "GET", "/api/definitions", "").Body.Len() }
	before := size()
	for i := range some {
		w.do(&logpb.CatalogCommand{Body: &logpb.CatalogCommand_DeclareQueue{DeclareQueue: &logpb.DeclareQueue{
			Vhost: "/", Name: fmt.Sprintf("%0100d", i), Durable: true, Members: []uint32{1, 2, 3},
		}}})
	}
	if n := int64(size()-before) / some * w.View().Setting(catalog.ClusterQueueLimit); n > definitionsBody {
		t.Errorf("an export of %d bytes is refused", n)
	}
}
