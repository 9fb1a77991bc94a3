package main

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/quorate/quorate/amqp"
)

// door is the clients' way in, see cluster.Door.
type door struct {
	front   *amqp.Server
	address string
	failed  chan<- error // gets why listening has failed

	mu       sync.Mutex
	listener net.Listener // nil: shut
}

// newDoor returns a door with a listener at which nobody serves yet.
func newDoor(front *amqp.Server, l net.Listener, failed chan<- error) *door {
	return &door{front: front, address: l.Addr().String(), failed: failed, listener: l}
}

// serve lets in who comes to the listener.
func (d *door) serve(l net.Listener) {
	go func() {
		if err := d.front.Serve(l); !errors.Is(err, amqp.ErrServerClosed) {
			d.failed <- err
		}
	}()
}

// Shut implements cluster.Door.
func (d *door) Shut(ctx context.Context, reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.front.Suspend(ctx, reason)
	if d.listener != nil {
		d.listener.Close() // nobody may have served there yet
		d.listener = nil
	}
}

// Open implements cluster.Door.
func (d *door) Open() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener != nil {
		return nil
	}
	l, err := net.Listen("tcp", d.address)
	if err != nil {
		return err
	}
	d.listener = l
	d.front.Resume()
	d.serve(l)
	return nil
}

// serveFirst lets clients in for the first time, unless the door is shut.
func (d *door) serveFirst() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener != nil {
		d.serve(d.listener)
	}
}
