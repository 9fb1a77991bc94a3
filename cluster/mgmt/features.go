package mgmt

import (
	"fmt"
	"net/http"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// featureFlags lists the versions of the replicated state that the cluster has reached.
func featureFlags(w *responder, r *request) {
	var items []api.FeatureFlag
	for version := uint32(1); version <= r.view.FSMVersion(); version++ {
		items = append(items, api.FeatureFlag{
			Name: fmt.Sprintf("fsm_version_%d", version), State: "enabled", Stability: "required", ProvidedBy: "quorate",
			About: fmt.Sprintf("version %d of the replicated state", version),
		})
	}
	list(w, r, items)
}

// nothing answers a list of what there is none of: extensions of the API.
func nothing(w *responder, r *request) { list(w, r, []struct{}{}) }

// enableFlag succeeds for flags that are enabled: they are so once all nodes know them.
func enableFlag(w *responder, r *request) {
	name := r.PathValue("name")
	var version uint32
	if _, err := fmt.Sscanf(name, "fsm_version_%d", &version); name != "all" && (err != nil || name != fmt.Sprintf("fsm_version_%d", version) || version < 1) {
		w.notFound()
		return
	}
	if version > r.view.FSMVersion() {
		w.badRequest("unsupported: not all nodes support " + name)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// node shows one node.
func (o operations) node(w *responder, r *request) {
	for _, n := range o.cluster.Nodes(r.Context()) {
		if n.Name == r.PathValue("node") {
			w.answer(http.StatusOK, n)
			return
		}
	}
	w.notFound()
}
