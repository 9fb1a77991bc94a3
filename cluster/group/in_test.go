package group

// in returns the instance of a group that is awake.
func (g *Group) in() *instance { return g.running.Load() }
