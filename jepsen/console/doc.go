// Package console uses the web console of real nodes in a headless Chromium, as a person would: with
// the mouse, the keyboard and what is on the screen. Without Chromium its tests are skipped.
package console
