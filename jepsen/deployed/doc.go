// Package deployed tests what deploy makes, with the tools that users have: images and
// compose.yaml with a Docker daemon. It needs a flag, as the tools are not everywhere;
// deploy/compose.sh gives it, and starts a daemon if none runs.
package deployed
