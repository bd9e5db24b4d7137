"""What every frontend needs and no framework owns: tables, states of passes, order of use, syncers, plan switches."""
