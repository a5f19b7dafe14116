-- Until when missed ticks are being spread, so that their pace is the same from plan to plan.
ALTER TABLE schedule_state ADD COLUMN spread_until INTEGER NOT NULL DEFAULT 0;
