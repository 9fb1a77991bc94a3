package main

import (
	"fmt"
	"time"
)

// progressEvery is how often the progress of long work is shown.
const progressEvery = 5 * time.Second

// progress shows how far work has come, on the standard error, until the result is called. state
// returns the line to show; none: it is not known.
func (c *call) progress(state func() string) (end func()) {
	if c.options.quiet || c.options.bare {
		return func() {}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(c.progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if line := state(); line != "" {
					fmt.Fprintln(c.errOut, line)
				}
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

// movedBytes is the progress of a backup.
func (c *call) movedBytes(what string) func() string {
	return func() string { return fmt.Sprintf("%d MB %s", c.moved.Load()/1e6, what) }
}
