package catalog

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// Bounds of global parameters.
const (
	maxGlobals     = 1000
	maxGlobalBytes = 64 << 10 // of the JSON text of one value
)

// ClusterName is the global parameter with the name of the cluster.
const ClusterName = "cluster_name"

// globals are the global runtime parameters: values that clients and tools keep here. No machine
// depends on them.
//
// Invariant: globalRows ascend by name, each name once. The slice is replaced, never changed.
type globals struct{ globalRows []*logpb.PutGlobalParameter }

// GlobalParameter returns the JSON text of a global parameter.
func (g *globals) GlobalParameter(name string) (value []byte, ok bool) {
	i, ok := findSetting(g.globalRows, name, (*logpb.PutGlobalParameter).GetName)
	if !ok {
		return nil, false
	}
	return g.globalRows[i].GetValue(), true
}

// GlobalParameters lists the global parameters by name. The rows are shared and must not be changed.
func (g *globals) GlobalParameters() []*logpb.PutGlobalParameter { return slices.Clone(g.globalRows) }

// ShownName is the name that was given to the cluster; ok is false if none was. It is the JSON string
// in a global parameter.
func (g *globals) ShownName() (name string, ok bool) {
	value, ok := g.GlobalParameter(ClusterName)
	if !ok || json.Unmarshal(value, &name) != nil || name == "" {
		return "", false
	}
	return name, true
}

// put performs PutGlobalParameter. The value is text of its proposer: it is not read here.
func (g *globals) put(m *logpb.PutGlobalParameter) (*logpb.CatalogResult, error) {
	if err := checkName("global parameter", m.GetName()); err != nil {
		return nil, err
	}
	i, given := findSetting(g.globalRows, m.GetName(), (*logpb.PutGlobalParameter).GetName)
	next := slices.Clone(g.globalRows)
	switch {
	case len(m.GetValue()) > maxGlobalBytes:
		return nil, refuse(fsm.Precondition, "a global parameter may have at most %d bytes, not %d", maxGlobalBytes, len(m.GetValue()))
	case m.GetUnset() && !given, given && !m.GetUnset() && slices.Equal(g.globalRows[i].GetValue(), m.GetValue()):
		return &logpb.CatalogResult{}, nil
	case m.GetUnset():
		next = slices.Delete(next, i, i+1)
	case given:
		next[i] = m
	case len(next) >= maxGlobals:
		return nil, refuse(fsm.Precondition, "limit of %d global parameters reached", maxGlobals)
	default:
		next = slices.Insert(next, i, m)
	}
	g.globalRows = next
	return &logpb.CatalogResult{Changed: true}, nil
}

func (g *globals) save(to *logpb.CatalogSnapshot) { to.GlobalParameters = g.globalRows }

func (g *globals) restore(from *logpb.CatalogSnapshot) { g.globalRows = from.GetGlobalParameters() }

func (g *globals) describe(b *strings.Builder) {
	for _, row := range g.globalRows {
		fmt.Fprintf(b, "global-parameter %s %s\n", row.GetName(), row.GetValue())
	}
}

func (g *globals) check() error {
	for i, row := range g.globalRows {
		if i > 0 && g.globalRows[i-1].GetName() >= row.GetName() {
			return fmt.Errorf("global parameter %q follows %q", row.GetName(), g.globalRows[i-1].GetName())
		}
	}
	return nil
}
