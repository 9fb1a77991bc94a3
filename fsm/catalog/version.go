package catalog

import (
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/proto/logpb"
)

// FSMVersion is the version of all machines: this one is of it, and the
// leaders of queues stamp it on their entries. It is 1 at first and only rises.
func (v *View) FSMVersion() uint32 { return uint32(v.Setting(FSMVersion)) }

// SnapshotVersion is the version of the catalog that s was taken from.
func SnapshotVersion(s *logpb.CatalogSnapshot) uint32 {
	for _, row := range s.GetSettings() {
		if row.GetName() == FSMVersion {
			return uint32(row.GetValue())
		}
	}
	return 1
}

// CheckVersions refuses a node whose program cannot be of the present version.
func (v *View) CheckVersions(node string, s fsm.Versions) error {
	if now := v.FSMVersion(); !s.Include(now) {
		return refuse(fsm.Precondition, "the cluster's fsm_version is %d, and node %s supports %s", now, node, s)
	}
	return nil
}

// CommonVersion is the newest version that all nodes have announced, and the
// name of a node that announces no later one. Without a node it is 1.
func (v *View) CommonVersion() (version uint32, least string) {
	version = 1
	for i, n := range v.Nodes() {
		if newest := fsm.Announced(n).Newest; i == 0 || newest < version {
			version, least = newest, n.GetName()
		}
	}
	return version, least
}

// checkRaise refuses to set a version that is not above the present one, or
// that not all nodes support.
func (d *draft) checkRaise(m *logpb.PutSetting) error {
	now := d.FSMVersion()
	common, least := d.CommonVersion()
	switch value := m.GetValue(); {
	case m.GetUnset() || value < int64(now):
		return refuse(fsm.Precondition, "cluster setting '%s' is %d and never falls", FSMVersion, now)
	case value > int64(now) && value > int64(common):
		return refuse(fsm.Precondition, "cluster setting '%s' cannot be %d: node '%s' supports no more than %d", FSMVersion, value, least, common)
	}
	return nil
}

// checkVersions: the processes that have registered support the present
// version.
func (v *View) checkVersions() error {
	for _, n := range v.Nodes() {
		if n.GetBoot() == 0 {
			continue // it is admitted, and has to register
		}
		if err := v.CheckVersions(n.GetName(), fsm.Announced(n)); err != nil {
			return fmt.Errorf("node %d: %w", n.GetNumber(), err)
		}
	}
	return nil
}
