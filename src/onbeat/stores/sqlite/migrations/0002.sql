-- The end of the window over which missed ticks are spread, so that their pace is kept.
ALTER TABLE schedule_state ADD COLUMN spread_until INTEGER NOT NULL DEFAULT 0;
