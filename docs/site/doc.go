// Package site holds the settings by which Sphinx makes a site of the pages in docs, and a
// test that it can.
package site
