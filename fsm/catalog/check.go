package catalog

import "fmt"

// Check returns the first broken invariant it finds: every part checks what it
// keeps true, and View compares what two of them hold.
//
// It walks over the whole state, so Restore calls it and Apply does not.
func (v *View) Check() error {
	for _, check := range []func() error{
		func() error { return v.nodes.check(v.index) },
		v.clusterSettings.check,
		func() error { return v.nodes.checkVersions(&v.clusterSettings) },
		func() error { return v.limits.check(v.there) },
		v.joinTokens.check,
		v.lockKey.check,
		v.globals.check,
		func() error { return v.proposals.check(&v.nodes) },
		v.checkVHosts,
		func() error { return v.placements.check(&v.queueIndex) },
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// checkVHosts checks the vhosts, and compares their queues with those of the
// index and of the placements.
func (v *View) checkVHosts() error {
	queues, exclusive := 0, 0
	for name, vh := range v.vhosts.byName() {
		if vh.row.GetName() != name {
			return fmt.Errorf("vhost %q stands under %q", vh.row.GetName(), name)
		}
		if err := vh.check(v.clock, &v.users); err != nil {
			return err
		}
		for q := range vh.queues.Values() {
			if err := v.queueIndex.checkQueue(q, v.index); err != nil {
				return err
			}
			if err := v.placements.checkQueue(q, &v.nodes); err != nil {
				return err
			}
			queues++
			if q.Exclusive {
				exclusive++
			}
		}
	}
	return v.queueIndex.check(queues, exclusive)
}
