package e2e

import "tierd/pkg/control"

// The JSON that tierctl prints is that of the admin socket.
type (
	poolStatus       = control.PoolStatus
	tierInfo         = control.Tier
	backingInfo      = control.Backing
	volumeInfo       = control.Volume
	lostVolume       = control.VolumeLost
	volumeChange     = control.VolumeChange
	relocationStatus = control.RelocationStatus
	relocationPlan   = control.RelocationPlan
	location         = control.Location
	heatMap          = control.HeatMap
)
